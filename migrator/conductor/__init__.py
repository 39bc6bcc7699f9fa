# SPDX-License-Identifier: Apache-2.0

"""The storyteller: it owns the saga, the journal, every status, and every allocation."""
