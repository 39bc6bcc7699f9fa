# SPDX-License-Identifier: Apache-2.0

"""The two functions that each module of options has: ``register_opts`` and ``list_opts``."""

from __future__ import annotations

from collections.abc import Callable

from oslo_config import cfg

Register = Callable[[cfg.ConfigOpts], None]
Listed = list[tuple[str, list[cfg.Opt]]]


def of(**sections: list[cfg.Opt]) -> tuple[Register, Callable[[], Listed]]:
    """Return the functions of a module.

    The first registers the options on a ``ConfigOpts``. The second returns them by section, for the generator of the
    sample file.

    :param sections: the name of each section, with its options.
    """

    def register_opts(conf: cfg.ConfigOpts) -> None:
        for name, options in sections.items():
            conf.register_opts(options, group=None if name == 'DEFAULT' else name)

    def list_opts() -> Listed:
        return list(sections.items())

    return register_opts, list_opts
