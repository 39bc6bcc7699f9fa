# SPDX-License-Identifier: Apache-2.0

"""Options by section; each module registers its own on the ConfigOpts that it is given, and on no other."""
