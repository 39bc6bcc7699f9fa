# SPDX-License-Identifier: Apache-2.0

"""All mutants. Each breaks an invariant or a contract of the API.

A new mutant belongs to the module of its package. Text of logs and metrics is left out, and so is any change that no
test can see.
"""

from tests.mutants import compute, conductor, db, placement_client, saga, virt

MUTANTS = (*saga.MUTANTS, *db.MUTANTS, *placement_client.MUTANTS, *compute.MUTANTS, *conductor.MUTANTS, *virt.MUTANTS)
BY_NAME = {mutant.name: mutant for mutant in MUTANTS}
PACKAGES = ('compute', 'conductor', 'db', 'placement_client', 'saga', 'virt')
