# SPDX-License-Identifier: Apache-2.0

"""One file a version, the oldest first."""
