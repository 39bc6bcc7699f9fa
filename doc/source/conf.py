# SPDX-License-Identifier: Apache-2.0

"""The documentation, built by `make docs` or `tox -e docs`."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent / '_ext'))

project = 'migrator'
copyright = 'the migrator developers, Apache License 2.0'
version = release = ''

extensions = [
    'from_code',
    'oslo_config.sphinxext',
    'oslo_policy.sphinxext',
]

html_theme = 'alabaster'
html_theme_options = {
    'description': 'A live-migration control plane',
    'page_width': '1200px',
    'sidebar_width': '260px',
    'body_max_width': 'auto',
    'fixed_sidebar': True,
    'sidebar_collapse': True,
    'sidebar_includehidden': True,
}
html_sidebars = {'**': ['about.html', 'searchfield.html', 'navigation.html']}
html_title = 'migrator'
html_static_path = ['_static']
html_show_sourcelink = False

highlight_language = 'text'
nitpicky = True
