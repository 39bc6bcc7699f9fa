# SPDX-License-Identifier: Apache-2.0

"""A private Prometheus that scrapes the services of a site."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from tests.real.servers import process


class Prometheus(process.Process):
    """One server.

    :param targets: the port at which each service serves its metrics: (kind, name) -> port.
    :param seconds: between two scrapes.
    """

    def __init__(self, workspace: process.Workspace, targets: Mapping[tuple[str, str], int], seconds: int) -> None:
        super().__init__(workspace, 'prometheus')
        self.port = process.free_port()
        self.url = f'http://{process.HOST}:{self.port}'
        jobs = [
            {
                'job_name': f'migrator-{kind}',
                'static_configs': [
                    {'targets': [f'{process.HOST}:{port}'], 'labels': {'instance': name}}
                    for (of, name), port in targets.items()
                    if of == kind
                ],
            }
            for kind in sorted({kind for kind, _ in targets})
        ]
        self._file = self.directory / 'prometheus.json'  # JSON is YAML
        self._file.write_text(json.dumps({'global': {'scrape_interval': f'{seconds}s'}, 'scrape_configs': jobs}))

    def command(self) -> Sequence[str]:
        """Return what is run."""
        places = [f'--config.file={self._file}', f'--storage.tsdb.path={self.directory / "data"}']
        return ['prometheus', *places, f'--web.listen-address={process.HOST}:{self.port}']

    def ready(self) -> bool:
        """Return whether it serves."""
        return process.listens(self.port)
