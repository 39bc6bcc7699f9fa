# SPDX-License-Identifier: Apache-2.0

"""What an operator can look at and request, for migrator-manage and for /migrator/v1.

Nothing here calls a host. What an operator requests, a conductor carries out.
"""
