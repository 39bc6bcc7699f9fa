# SPDX-License-Identifier: Apache-2.0

"""A configuration whose values are looked up once, for thousands of clouds."""

from __future__ import annotations

from typing import Any

from oslo_config import cfg


class KeptConf(cfg.ConfigOpts):
    """A configuration that keeps each value until one is overridden.

    :ivar is_spoiled: whether files were read after its first use, so that :meth:`restore` does not restore all.
    """

    def __init__(self) -> None:
        self.is_spoiled = False
        self._is_read = False
        self._kept: set[str] = set()
        self._kept_groups: dict[str, _Group] = {}
        self._overridden: set[tuple[str, str | None]] = set()
        super().__init__()

    def __getattr__(self, name: str) -> Any:
        """Look an option or a group up, and keep it."""
        value = super().__getattr__(name)
        if isinstance(value, cfg.ConfigOpts.GroupAttr):
            value = self._kept_groups.setdefault(name, _Group(value._conf, value._group))
        self._kept.add(name)
        vars(self)[name] = value
        return value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Read the command line and the files, and forget what was kept."""
        self._forget()
        self.is_spoiled, self._is_read = self._is_read, True
        return super().__call__(*args, **kwargs)

    def mutate_config_files(self) -> Any:
        """Read the files again, and forget what was kept."""
        self._forget()
        self.is_spoiled = True
        return super().mutate_config_files()

    def set_override(self, name: str, override: Any, group: str | cfg.OptGroup | None = None) -> None:
        """Override a value, and forget what was kept."""
        self._forget()
        super().set_override(name, override, group)
        self._overridden.add((name, group if group is None else str(getattr(group, 'name', group))))

    def clear_override(self, name: str, group: str | cfg.OptGroup | None = None) -> None:
        """Clear the override of a value, and forget what was kept."""
        self._forget()
        super().clear_override(name, group)

    def restore(self) -> None:
        """Clear all overrides."""
        for name, group in self._overridden:
            self.clear_override(name, group)
        self._overridden.clear()

    def _forget(self) -> None:
        for name in self._kept:
            del vars(self)[name]
        self._kept.clear()
        for group in self._kept_groups.values():
            group.forget()


class _Group(cfg.ConfigOpts.GroupAttr):
    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        vars(self)[name] = value
        return value

    def forget(self) -> None:
        """Forget what was kept."""
        conf, group = self._conf, self._group
        vars(self).clear()
        self._conf, self._group = conf, group
