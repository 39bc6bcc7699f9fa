# SPDX-License-Identifier: Apache-2.0

"""A driver in a process of its own, which tests kill or patch: ``killed_driver.py SETTINGS``.

SETTINGS is JSON: ``patched``, whether eventlet patches the process; ``default`` and ``libvirt``, its options;
``instance`` and ``migrate_data``, what a conductor would send. It prints a line for each thing that it has done.
"""

from __future__ import annotations

import json
import sys
import time


def main(settings: dict[str, object]) -> None:
    """Prepare the destination, and move the guest."""
    if settings['patched']:
        import eventlet

        eventlet.monkey_patch()
    from oslo_config import cfg

    from migrator import executors
    from migrator.conf import compute, libvirt
    from migrator.objects import base
    from migrator.virt.libvirt.driver import LibvirtDriver

    conf = cfg.ConfigOpts()
    compute.register_opts(conf)
    libvirt.register_opts(conf)
    conf([], default_config_files=[], default_config_dirs=[])
    for name, value in settings['default'].items():  # type: ignore[attr-defined]  # read from JSON
        conf.set_override(name, value)
    for name, value in settings['libvirt'].items():  # type: ignore[attr-defined]  # read from JSON
        conf.set_override(name, value, group='libvirt')
    threads = executors.NativeThreads()
    driver = LibvirtDriver(conf, threads)
    driver.init_host(conf.host)
    instance, data = (base.from_primitive(settings[name]) for name in ('instance', 'migrate_data'))
    ticks = 0
    stopped = threads.event()

    def tick() -> None:
        nonlocal ticks
        while not stopped.is_set():
            threads.sleep(0.05)
            ticks += 1

    threads.start(tick, name='tick')
    print('calls', flush=True)
    began = time.monotonic()
    verdict = driver.live_migration(instance, 'beta', data, lambda: print('started', flush=True))
    stopped.set()
    print(verdict, ticks, round(time.monotonic() - began, 1), driver.get_guest(instance.uuid).state, flush=True)


if __name__ == '__main__':
    main(json.loads(sys.argv[1]))
