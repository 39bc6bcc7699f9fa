# SPDX-License-Identifier: Apache-2.0

"""The resources of ``/migrator/v1``: what nova's API has no room for. Each module has its schemas and its policies."""
