# SPDX-License-Identifier: Apache-2.0

"""Hypervisors: the driver interface and its implementations.

A driver never calls the compute manager.
"""
