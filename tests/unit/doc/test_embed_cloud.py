# SPDX-License-Identifier: Apache-2.0

"""The test on the page on embedding runs."""


def test_example_moves_guest_to_other_host(page, tmp_path):
    page('embed_driver')
    page('embed_cloud').test_guest_moves_to_other_host(tmp_path)
