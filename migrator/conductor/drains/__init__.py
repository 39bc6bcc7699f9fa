# SPDX-License-Identifier: Apache-2.0

"""A conductor's drains: the engine that moves the guests, the plan, and the task that advances them."""
