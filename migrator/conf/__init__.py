# SPDX-License-Identifier: Apache-2.0

"""The options by section. Each module registers its options only on the ConfigOpts that it receives."""
