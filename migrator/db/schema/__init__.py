# SPDX-License-Identifier: Apache-2.0

"""The schema and its versions, for alembic."""
