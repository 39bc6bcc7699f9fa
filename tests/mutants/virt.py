# SPDX-License-Identifier: Apache-2.0

"""Mutants of migrator/virt, in code that needs no libvirt."""

from tests.mutants.mutant import Mutant

CHECKS = 'migrator/virt/libvirt/checks.py'

MUTANTS = (
    Mutant(
        'a-guest-is-sent-to-another-host-than-its-destination',
        CHECKS,
        'if not found or not wanted or found == wanted:',
        'if not found or not wanted or found != wanted:',
        'A guest arrives at a host other than its destination, and its migration ends as completed.',
    ),
    Mutant(
        'a-migration-uri-of-one-host-is-accepted',
        CHECKS,
        "if uri and '%s' not in uri:",
        "if uri and '%' in uri:",
        'Every guest goes to the same host, whatever destination was chosen.',
    ),
)
