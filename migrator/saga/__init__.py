# SPDX-License-Identifier: Apache-2.0

"""Sagas in general: a plain list of declared steps, a journal, and an executor that runs the one by the other."""
