# SPDX-License-Identifier: Apache-2.0

"""The list of what the image contains."""

import json
import subprocess

from packaging import utils

from tests.unit.test_container import PROJECT, ROOT, locked


def test_sbom_lists_every_locked_version_with_its_address():
    done = subprocess.run(['make', '--silent', 'sbom'], cwd=ROOT, capture_output=True, text=True, check=True)
    made = json.loads(done.stdout)
    assert made['metadata']['component']['name'] == PROJECT['name']
    listed = {utils.canonicalize_name(each['name']): each for each in made['components']}
    assert {name: each['version'] for name, each in listed.items()} == locked()
    for name, each in listed.items():
        address, _, version = each['purl'].removeprefix('pkg:pypi/').partition('@')
        assert (utils.canonicalize_name(address), version) == (name, each['version'])
