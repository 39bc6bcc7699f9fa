# SPDX-License-Identifier: Apache-2.0

"""The compute service, which runs one step of a migration when a conductor sends it, and replies.

Other services import only ``rpcapi``.
"""
