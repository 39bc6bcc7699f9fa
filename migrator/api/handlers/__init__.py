# SPDX-License-Identifier: Apache-2.0

"""What answers each URL of routes.py, one noun a file."""
