# SPDX-License-Identifier: Apache-2.0

"""Hypervisors: the driver's interface and its implementations, below the manager and never calling up into it."""
