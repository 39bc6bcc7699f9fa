# SPDX-License-Identifier: Apache-2.0

"""Placement: the only package that talks to it."""
