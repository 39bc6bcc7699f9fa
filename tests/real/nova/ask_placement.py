# SPDX-License-Identifier: Apache-2.0

"""Print as JSON what an installed nova asks Placement for, and which extra specs it refuses.

Run by the interpreter of nova's virtual environment. The standard input has flavors, each with the properties of an
image, and extra specs.
"""

from __future__ import annotations

import json
import sys
import warnings
from urllib import parse

from nova import conf, context, exception, objects
from nova.api.validation.extra_specs import validators
from nova.scheduler import request_filter, utils

warnings.simplefilter('ignore')

#: The filters that need neither Neutron nor a database, nor an option that is off by default.
FILTERS = (
    request_filter.accelerators_filter,
    request_filter.packed_virtqueue_filter,
    request_filter.ephemeral_encryption_filter,
    request_filter.virtio_sound_filter,
    request_filter.tpm_secret_security_filter,
)


def asked(guest: dict[str, object]) -> object:
    """Return the query for a guest, and the one for its fallback or None; or why nova refuses the guest."""
    flavor = objects.Flavor(context.RequestContext(), **guest['flavor'])
    image = objects.ImageMeta(properties=objects.ImageMetaProps.from_dict(guest['properties']), disk_format='raw')
    spec = objects.RequestSpec(flavor=flavor, image=image, is_bfv=guest['is_volume_backed'])
    try:
        for one in FILTERS:
            one(context.RequestContext(), spec)
        found = utils.ResourceRequest.from_request_spec(spec)
        pairs = parse.parse_qsl(found.to_querystring(), keep_blank_values=True)
        fallback = None
        if found.cpu_pinning_requested:
            other = utils.ResourceRequest.from_request_spec(spec, enable_pinning_translate=False)
            fallback = parse.parse_qsl(other.to_querystring(), keep_blank_values=True)
    except Exception as error:  # noqa: BLE001 -- a guest that nova refuses has no request
        return {'refused': f'{type(error).__name__}: {error}'}
    return {'query': pairs, 'fallback': fallback}


def is_refused(key: str, value: str) -> bool:
    """Return whether nova refuses an extra spec of a flavor."""
    try:
        validators.validate(key, value)
    except exception.ValidationError:
        return True
    return False


def main() -> None:
    """Answer for each guest and each extra spec."""
    conf.CONF([], project='nova', default_config_files=[])
    objects.register_all()
    given = json.load(sys.stdin)
    found = {
        'requests': [asked(guest) for guest in given['guests']],
        'refused': [is_refused(key, value) for key, value in given['specs']],
    }
    json.dump(found, sys.stdout)


if __name__ == '__main__':
    main()
