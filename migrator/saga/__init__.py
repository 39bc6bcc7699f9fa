# SPDX-License-Identifier: Apache-2.0

"""Sagas in general: a list of declared steps, a journal of their records, and an executor."""
