# SPDX-License-Identifier: Apache-2.0

"""The loop that drains a host. An engine, the control plane that moves the guests, is given to it."""
