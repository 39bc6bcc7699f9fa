# SPDX-License-Identifier: Apache-2.0

"""The drains of a conductor: the engine that moves their guests, and the task that advances them."""
