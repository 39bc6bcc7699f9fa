# SPDX-License-Identifier: Apache-2.0

"""The resources of ``/migrator/v1``, each module with its schemas and its policies."""
