# SPDX-License-Identifier: Apache-2.0

"""A second cell of the lab: a database, a virtual host of the broker, a conductor and two hosts."""

from __future__ import annotations

from tests.real.nova import lab as labs
from tests.real.servers import mariadb, process

NAME = 'cell2'
HOSTS = ('host4', 'host5')


class Cell:
    """The second cell of a lab, which keeps it. Its database can be made to answer no more.

    :param lab: it restarts the services of the lab that have to learn of the cell.
    """

    def __init__(self, lab: labs.Lab) -> None:
        self.lab = lab
        self._database, self._broker = lab.database, lab.broker
        url = self._create_database()
        broker = self._broker.create_vhost(NAME)
        sections = {
            'DEFAULT': {'host': f'control-{NAME}', 'transport_url': broker},
            'database': {'connection': url},
        }
        lab.write(NAME, sections)
        lab.manage(
            'cell_v2', 'create_cell', f'--name={NAME}', f'--database_connection={url}', f'--transport-url={broker}'
        )
        lab.manage('db', 'sync', '--local_cell', files=('control', NAME))
        lab.add(f'conductor-{NAME}', 'nova-conductor', ('control', NAME), 'conductor', NAME)
        for host in HOSTS:
            lab.add_compute(host, NAME, broker)
        for name in ('conductor', 'scheduler', 'api'):
            lab.services[name].kill()
        for service in lab.services.values():
            if not service.running:
                service.start(wait=False)
        lab.wait_ready()
        process.wait_until(
            lambda: {*HOSTS} <= lab.known_hosts(), 'nova and Placement to have the hosts of the cell', 120
        )

    def _create_database(self) -> str:
        name = f'nova_{NAME}'
        self._database.create_database(name)
        self._database.administer(
            f'ALTER DATABASE {name} CHARACTER SET utf8mb3',
            f"CREATE USER '{NAME}'@'{process.HOST}' IDENTIFIED BY '{mariadb.PASSWORD}'",
            f"GRANT ALL ON {name}.* TO '{NAME}'@'{process.HOST}'",
        )
        return f'{self._database.url(name, NAME)}?charset=utf8mb3'

    def cut(self) -> None:
        """Let the database of the cell answer no more, and its services do nothing."""
        for name in (f'conductor-{NAME}', *HOSTS):
            self.lab.services[name].pause()
        self._database.administer(f"ALTER USER '{NAME}'@'{process.HOST}' ACCOUNT LOCK")
        for (number,) in self._database.administer(
            f"SELECT id FROM information_schema.processlist WHERE user = '{NAME}'"  # noqa: S608 -- our own name
        ):
            self._database.administer(f'KILL {number}')

    def mend(self) -> None:
        """Undo :meth:`cut`."""
        self._database.administer(f"ALTER USER '{NAME}'@'{process.HOST}' ACCOUNT UNLOCK")
        for name in (f'conductor-{NAME}', *HOSTS):
            self.lab.services[name].go_on()
