# SPDX-License-Identifier: Apache-2.0

"""The comparison of the guests that hosts report with the database, and what follows from it."""
