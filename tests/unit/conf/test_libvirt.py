# SPDX-License-Identifier: Apache-2.0

"""Options of an operator's nova.conf."""

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
def test_allocation_ratio_of_zero_means_unset(tmp_path, name, unset):
    option = f'{name}_allocation_ratio'
    assert read(tmp_path / 'none.conf', '')[option] == unset
    assert read(tmp_path / 'nought.conf', f'[DEFAULT]\n{option} = 0.0\n')[option] == unset
    assert read(tmp_path / 'set.conf', f'[DEFAULT]\n{option} = 1.5\n')[option] == 1.5
    with pytest.raises(cfg.ConfigFileValueError, match=option):
        read(tmp_path / 'wrong.conf', f'[DEFAULT]\n{option} = -1\n')[option]
