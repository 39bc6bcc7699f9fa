# SPDX-License-Identifier: Apache-2.0

"""``python -m migrator.simulator``: random runs."""

import sys

from migrator.simulator.runs import main

if __name__ == '__main__':
    sys.exit(main())
