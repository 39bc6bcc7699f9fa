# SPDX-License-Identifier: Apache-2.0

"""Links between two processes of a site, which a long run cuts: a TCP proxy in a process of its own.

Each service reaches each server through a link of its own, so that any two can be parted while all others still meet.
A link is *open*, *refused* (its connections are reset, and new ones too, as by a firewall or a dead machine) or
*stalled* (nothing arrives and nothing ends, as on a network that loses every packet; what was sent arrives once the
link is open again).
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Mapping, Sequence

from tests.real.servers import process

OPEN, REFUSED, STALLED = 'open', 'refused', 'stalled'
_CHUNK = 65536


class Links(process.Script):
    """The process with all links of a site. Name each link before it starts."""

    def __init__(self, workspace: process.Workspace) -> None:
        super().__init__(workspace, 'links', [], ready=lambda _script: process.listens(self.control))
        self.control = process.free_port()
        self.targets: dict[str, tuple[int, int]] = {}

    def port(self, name: str, target: int) -> int:
        """Return the port of a link.

        :param name: ``conductor1>broker``.
        :param target: the port that the link leads to.
        """
        if name not in self.targets:
            assert not self.running, f'{name} is new, and the links run already'
            self.targets[name] = (process.free_port(), target)
        return self.targets[name][0]

    def command(self) -> Sequence[str]:
        """Return what is run."""
        return [sys.executable, '-m', 'tests.long_run.links', str(self.control), json.dumps(self.targets)]

    def set(self, name: str, mode: str) -> None:
        """Open or cut a link.

        :param mode: :data:`OPEN`, :data:`REFUSED` or :data:`STALLED`.
        """
        with socket.create_connection((process.HOST, self.control), timeout=30) as connection:
            connection.sendall(json.dumps([name, mode]).encode() + b'\n')
            answer = connection.makefile().readline()
        if answer != 'done\n':
            raise process.ServerError(f'link {name} did not become {mode}: {answer!r}')

    def open_all(self) -> None:
        """Open every link."""
        for name in self.targets:
            self.set(name, OPEN)


class _Link:
    def __init__(self, target: int) -> None:
        self.target = target
        self.mode = OPEN
        self._flows = asyncio.Event()
        self._flows.set()
        self._writers: set[asyncio.StreamWriter] = set()

    def set(self, mode: str) -> None:
        self.mode = mode
        if mode == STALLED:
            self._flows.clear()
        else:
            self._flows.set()
        if mode == REFUSED:
            for writer in list(self._writers):
                writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        far: asyncio.StreamWriter | None = None
        try:
            await self._flows.wait()
            if self.mode == REFUSED:
                return
            far_reader, far = await asyncio.open_connection(process.HOST, self.target)
            self._writers.add(far)
            await asyncio.gather(self._pump(reader, far), self._pump(far_reader, writer))
        except OSError:
            pass  # one side has closed the connection, and the other one is closed below
        finally:
            for each in (writer, far):
                if each is not None:
                    self._writers.discard(each)
                    each.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK):
            await self._flows.wait()
            writer.write(data)
            await writer.drain()
        await self._flows.wait()
        raise ConnectionResetError


async def _run(control: int, targets: Mapping[str, Sequence[int]]) -> None:
    links = {name: _Link(target) for name, (_port, target) in targets.items()}
    for name, (port, _target) in targets.items():
        await asyncio.start_server(links[name].serve, process.HOST, port)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        if line:
            name, mode = json.loads(line)
            links[name].set(mode)
            writer.write(b'done\n')
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, process.HOST, control)
    await server.serve_forever()


if __name__ == '__main__':
    asyncio.run(_run(int(sys.argv[1]), json.loads(sys.argv[2])))
