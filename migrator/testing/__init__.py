# SPDX-License-Identifier: Apache-2.0

"""A whole cloud in one process, for tests and demos: simulated threads, a direct RPC, a recorder, fakes and faults."""
