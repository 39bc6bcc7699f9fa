# SPDX-License-Identifier: Apache-2.0

"""The rows as they are shown: one document for each noun, wherever it is shown.

REST answers it, ``--json`` prints it, OSC shows it with ``-f json``, and the page and ``watch`` read it.

Times in them are aware; both JSON encoders write them as :func:`migrator.objects.times.iso` does.

Nothing here calls a host or writes a row, so an operator sees everything while every service is down.
"""
