# SPDX-License-Identifier: Apache-2.0

"""The database; no other package imports oslo.db or SQLAlchemy."""
