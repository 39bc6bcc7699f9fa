# SPDX-License-Identifier: Apache-2.0

"""The commands ``openstack host drain ...``, for python-openstackclient."""
