# SPDX-License-Identifier: Apache-2.0

"""The REST API: the part of Nova's compute API that migrator serves."""
