# SPDX-License-Identifier: Apache-2.0

"""The maintenances of a conductor."""
