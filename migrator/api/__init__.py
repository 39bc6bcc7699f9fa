# SPDX-License-Identifier: Apache-2.0

"""HTTP in: Nova's REST API for what migrator serves."""
