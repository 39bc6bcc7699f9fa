# SPDX-License-Identifier: Apache-2.0

"""WSGI applications for any WSGI server."""
