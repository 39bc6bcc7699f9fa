# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

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
