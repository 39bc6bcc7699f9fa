# SPDX-License-Identifier: Apache-2.0

"""Each command line of migrator-drain in the documentation is run."""

from tests.unit.doc import commands


def test_each_command_line_of_migrator_drain_is_run(operator, nova):
    nova.add_guest('web')
    wrong, run = [], 0
    for words, page in commands.of('migrator-drain').items():
        given = [{'UUID': '6ef5d0b8-0d2b-4d36-9d3a-0d7b0a6c3c11'}.get(word, word) for word in words]
        if '--os-cloud' in given:
            at = given.index('--os-cloud')
            given = given[:at] + given[at + 2 :]
        if '--fence-command' in given or '--fenced' in given:
            continue  # it waits until the host is quiet; test_evacuation.py does both
        if given[0] == 'serve':
            continue  # it serves until a signal; test_serve.py does it
        try:
            status = operator.run(*given)[0]
            if status == 2 and len(given) == 1:
                status = operator.run(*given, '--help')[0]  # it only names the verb
        except SystemExit as stopped:
            status = stopped.code
        run += 1
        if status not in (0, 1) or 'Traceback' in operator.err:
            wrong.append(f'{page}: migrator-drain {" ".join(words)}: {status} {operator.err.strip()}')
    assert wrong == []
    assert run > 12
