# SPDX-License-Identifier: Apache-2.0

"""Mutants of migrator/virt, in code that needs no libvirt."""

from tests.mutants.mutant import Mutant

CHECKS = 'migrator/virt/libvirt/checks.py'

MUTANTS = (
    Mutant(
        'a-migration-uri-of-one-host-is-accepted',
        CHECKS,
        "if uri and '%s' not in uri:",
        "if uri and '%' in uri:",
        'Every guest goes to the same host, whatever destination was chosen.',
    ),
)
