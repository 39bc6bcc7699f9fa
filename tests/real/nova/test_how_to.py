# SPDX-License-Identifier: Apache-2.0

"""The commands of the how-to "Empty a host of your OpenStack" do on a stock nova what it says."""

import pathlib
import re
import shlex

from tests.real.nova.command import Command

HOW_TO = pathlib.Path(__file__).parents[3] / 'doc/source/empty-a-host-of-openstack.rst'


def commands():
    """Return the arguments of each migrator-drain command of the first literal block."""
    block = HOW_TO.read_text(encoding='utf-8').partition('::\n\n')[2].partition('\n\n')[0]
    return [shlex.split(line)[1:] for line in block.splitlines() if line.strip().startswith('migrator-drain ')]


def test_commands_of_the_how_to_empty_a_host_and_restore_it(lab, tmp_path):
    guests = set(lab.guests(2, 'host1'))
    command = Command(lab, tmp_path / 'state.sqlite')
    drain, printed, hosts = '', {}, {}
    for verb, *arguments in commands():
        printed[verb] = command.run(verb, *(drain if one == 'DRAIN' else one for one in arguments))
        hosts[verb] = lab.truth()['host1']
        if verb == 'list':
            drain = re.search(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}', printed['list'])[0]
    assert list(printed) == ['doctor', 'plan', 'start', 'list', 'restore', 'audit']
    assert hosts == {
        'doctor': guests,
        'plan': guests,
        'start': set(),
        'list': set(),
        'restore': guests,
        'audit': guests,
    }
    assert 'All is right' in printed['doctor']
    assert '2 guests of host1 can move' in printed['plan']
    assert 'host1 is empty' in printed['start']
    assert 'completed' in printed['list']
    assert 'No wrong allocation' in printed['audit']
