# SPDX-License-Identifier: Apache-2.0

"""Sagas in general: a list of declared steps, a log of their records, and an executor."""
