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

"""``migrator-manage db``: the schema."""

from __future__ import annotations

from migrator.cmd import manage_command
from migrator.db import sync

Asked = manage_command.Asked
Verb = manage_command.Verb


def sync_(asked: Asked) -> int:
    """Bring the schema up to this release."""
    engine = asked.engine()
    before = sync.version(engine)
    after = sync.sync(engine)
    changed = before != after
    text = f'The database schema is at {after}' + (f', and was at {before or "nothing"}.' if changed else ' already.')
    asked.answer({'version': after, 'before': before, 'changed': changed}, text)
    return manage_command.RIGHT


def version(asked: Asked) -> int:
    """Say which version the schema has; exit 1 if it is not that of this release."""
    engine = asked.engine()
    found, wanted = sync.version(engine), sync.head()
    document = {'version': found, 'wanted': wanted, 'current': found == wanted}
    asked.answer(document, f'The database schema is at {found or "nothing"}; this release needs {wanted}.')
    sync.check(engine)
    return manage_command.RIGHT


NOUN: manage_command.Noun = (
    'the database schema',
    (
        Verb('sync', 'bring the schema up to this release', sync_),
        Verb('version', 'say which version the schema has; 1 if it is not the one that is needed', version),
    ),
)
