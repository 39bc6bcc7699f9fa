# SPDX-License-Identifier: Apache-2.0

"""The handlers of the URLs in routes.py, one module for each resource."""
