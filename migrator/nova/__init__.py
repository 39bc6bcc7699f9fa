# SPDX-License-Identifier: Apache-2.0

"""Drains of a stock OpenStack Nova, through the public REST APIs of Nova and Placement alone."""
