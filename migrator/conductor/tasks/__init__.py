# SPDX-License-Identifier: Apache-2.0

"""The stories, one file each."""
