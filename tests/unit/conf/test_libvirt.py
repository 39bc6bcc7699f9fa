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

"""Options that an operator's nova.conf brings along."""

import pytest
from oslo_config import cfg

from migrator.conf import libvirt


def read(path, text):
    path.write_text(text)
    conf = cfg.ConfigOpts()
    libvirt.register_opts(conf)
    conf([], default_config_files=[str(path)], default_config_dirs=[])
    return conf


@pytest.mark.parametrize(('name', 'unset'), [('cpu', 4.0), ('ram', 1.0), ('disk', 1.0)])
def test_an_allocation_ratio_of_nought_is_one_that_is_not_set(tmp_path, name, unset):
    option = f'{name}_allocation_ratio'
    assert read(tmp_path / 'none.conf', '')[option] == unset
    assert read(tmp_path / 'nought.conf', f'[DEFAULT]\n{option} = 0.0\n')[option] == unset
    assert read(tmp_path / 'set.conf', f'[DEFAULT]\n{option} = 1.5\n')[option] == 1.5
    with pytest.raises(cfg.ConfigFileValueError, match=option):
        read(tmp_path / 'wrong.conf', f'[DEFAULT]\n{option} = -1\n')[option]
