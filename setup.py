# SPDX-License-Identifier: Apache-2.0

"""Everything is in pyproject.toml; this file sets a missing version and clears the last build.

pbr reads the version from PBR_VERSION, from an sdist's PKG-INFO, or from git. A plain copy of the tree (an archive, a
container without git, a checkout that belongs to another user) has none of them, and pbr would refuse to build it.
"""

import os
import shutil

import setuptools
from pbr import packaging

#: The release that this tree leads to. Raise it after each tag.
UNRELEASED = '0.1.0.dev0'

try:
    known = packaging.get_version('openstack-migrator')
except Exception:  # noqa: BLE001 - pbr raises a bare Exception, and a stray tag a ValueError: both mean "no version"
    known = '0.0.0'
if known.startswith('0.0.'):  # what pbr counts to in a clone without tags
    os.environ['PBR_VERSION'] = UNRELEASED

# setuptools puts all of build/lib into a wheel, also a module of an earlier build that is deleted since
shutil.rmtree('build/lib', ignore_errors=True)
setuptools.setup()
