# SPDX-License-Identifier: Apache-2.0

"""The release notes alone, built by `tox -e releasenotes`."""

project = 'migrator release notes'
copyright = 'the migrator developers, Apache License 2.0'

extensions = ['reno.sphinxext']

html_theme = 'alabaster'
version = release = ''
