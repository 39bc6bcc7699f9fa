# SPDX-License-Identifier: Apache-2.0

"""Hypervisors: the driver interface and the implementation for libvirt.

A driver never calls the compute manager.
"""
