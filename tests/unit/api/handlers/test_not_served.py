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

"""What Nova has and migrator leaves to it."""

import pytest


@pytest.mark.parametrize(
    ('method', 'path'),
    [
        ('POST', '/servers'),
        ('DELETE', '/servers/{server}'),
        ('PUT', '/servers/{server}'),
        ('GET', '/servers/{server}/os-volume_attachments'),
        ('GET', '/flavors/detail?is_public=None'),
        ('GET', '/flavors/m1'),
        ('GET', '/images'),
        ('GET', '/os-volumes'),
        ('GET', '/os-networks'),
        ('POST', '/os-services'),
        ('DELETE', '/os-services/1'),
        ('GET', '/'),
        ('GET', '/nonsense'),
    ],
)
@pytest.mark.parametrize('version', ['2.1', '2.80'])
def test_it_is_a_404_that_says_so_and_changes_nothing(world, method, path, version):
    guest = world.guest()
    before = world.rows()
    path = path.format(server=guest.uuid)
    if path == '/':
        path = '//'
    response = world.ask(method, path, {} if method in ('POST', 'PUT') else None, version=version)
    world.refuses(response, 404, 'itemNotFound', 'does not serve', method, since=before)
