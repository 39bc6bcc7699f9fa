# SPDX-License-Identifier: Apache-2.0

"""The command ``python -m migrator.simulator``, which makes random runs."""

import sys

from migrator.simulator.runs import main

if __name__ == '__main__':
    sys.exit(main())
