# SPDX-License-Identifier: Apache-2.0

"""The sagas, one module each."""
