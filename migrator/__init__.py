# SPDX-License-Identifier: Apache-2.0

"""The live-migration control plane: queue it, move it, abort it, and keep the books right."""
