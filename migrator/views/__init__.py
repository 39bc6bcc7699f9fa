# SPDX-License-Identifier: Apache-2.0

"""The rows as they are shown: one document for each noun, for migrator-manage and for /migrator/v1.

Nothing here calls a host or writes a row, so an operator sees everything while every service is down.
"""
