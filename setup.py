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

"""Everything is in pyproject.toml; this file only gives a version to a tree that has none.

pbr reads the version from PBR_VERSION, from an sdist's PKG-INFO, or from git. A plain copy of the tree (an archive, a
container without git, a checkout that belongs to another user) has none of them, and pbr would refuse to build it.
"""

import os

import setuptools
from pbr import packaging

#: The release that this tree leads to. Raise it after each tag.
UNRELEASED = '0.1.0.dev0'

try:
    known = packaging.get_version('migrator')
except Exception:  # noqa: BLE001 - pbr raises a bare Exception, and a stray tag a ValueError: both mean "no version"
    known = '0.0.0'
if known.startswith('0.0.'):  # what pbr counts to in a clone without tags
    os.environ['PBR_VERSION'] = UNRELEASED

setuptools.setup()
