# SPDX-License-Identifier: Apache-2.0

"""The database, behind oslo.db and SQLAlchemy; nothing else imports them."""
