# SPDX-License-Identifier: Apache-2.0

"""Private servers for tests, each on loopback and in a directory of its own; all use :mod:`.process`."""
