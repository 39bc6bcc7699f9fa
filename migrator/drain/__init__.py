# SPDX-License-Identifier: Apache-2.0

"""The drain of a host, without the control plane that moves the guests: an engine does that for it."""
