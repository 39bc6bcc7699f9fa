# SPDX-License-Identifier: Apache-2.0

"""Nova's notifications about migrations, derived from the sagas' logs by a periodic task."""
