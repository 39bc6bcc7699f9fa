# SPDX-License-Identifier: Apache-2.0

"""A whole cloud in one process, for tests and demos.

It has simulated threads, a direct RPC, a message recorder, fakes and faults.
"""
