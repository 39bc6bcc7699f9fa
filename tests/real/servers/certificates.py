# SPDX-License-Identifier: Apache-2.0

"""The certificates of a server with TLS on loopback."""

from __future__ import annotations

import os
import pathlib

from tests.real.servers import process


def issue(directory: pathlib.Path, user: str | None = None) -> tuple[pathlib.Path, pathlib.Path]:
    """Make an authority, and have it sign a certificate for loopback.

    :param user: who alone may read the key; None: as we are.
    :returns: the file of the authority, and one with the certificate and its key.
    """
    # where the extra 'real' is not installed, the tests that need it are left out one by one
    import trustme

    made = trustme.CA()
    authority, certificate = directory / 'authority.pem', directory / 'certificate.pem'
    made.cert_pem.write_to_path(authority)
    made.issue_cert(process.HOST, 'localhost').private_key_and_cert_chain_pem.write_to_path(certificate)
    certificate.chmod(0o600)
    if owner := process.credentials(user):
        os.chown(certificate, owner['user'], owner['group'])
    return authority, certificate
