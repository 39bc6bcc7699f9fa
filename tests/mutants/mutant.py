# SPDX-License-Identifier: Apache-2.0

"""One mutant: a bug of one line, put into the code to see which test finds it."""

from __future__ import annotations

import dataclasses
import hashlib


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A single-line change that is a real bug.

    :ivar name: in kebab-case, unique.
    :ivar file: the path below the root of the project.
    :ivar old: the text to replace, which occurs once in the file. It may hold unchanged neighbour lines.
    :ivar new: what replaces it.
    :ivar breaks: what goes wrong for an operator or a guest, in one sentence.
    """

    name: str
    file: str
    old: str
    new: str
    breaks: str

    @property
    def package(self) -> str:
        """The package of migrator that the file belongs to."""
        return self.file.split('/')[1]

    @property
    def digest(self) -> str:
        """A short hash of the change. A result is of use only for the change that it was measured with."""
        return hashlib.sha256('\0'.join((self.file, self.old, self.new)).encode()).hexdigest()[:12]

    def apply(self, source: str) -> str:
        """Return the source of the file with the bug in it.

        :raises ValueError: the old text does not occur exactly once.
        """
        found = source.count(self.old)
        if found != 1:
            raise ValueError(f'mutant {self.name}: its old text occurs {found} times in {self.file}, not once')
        return source.replace(self.old, self.new)
