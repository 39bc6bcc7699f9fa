# SPDX-License-Identifier: Apache-2.0

"""The client of Placement; no other package sends requests to it."""
