# SPDX-License-Identifier: Apache-2.0

"""The release notes alone, built by `tox -e releasenotes`."""

project = 'migrator release notes'
copyright = 'the migrator developers, Apache License 2.0'

extensions = ['openstackdocstheme', 'reno.sphinxext']

html_theme = 'openstackdocs'
html_theme_options = {
    'show_other_versions': False,
    'display_badge': False,
}
openstackdocs_auto_name = False
openstackdocs_auto_version = False
openstackdocs_use_storyboard = False
version = release = ''
