# SPDX-License-Identifier: Apache-2.0

"""The conductor service, which runs migrations and writes their statuses, logs and allocations.

Other services import only ``rpcapi``.
"""
