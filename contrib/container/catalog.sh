# SPDX-License-Identifier: Apache-2.0

# Makes the endpoint of compute known to clients, once.
export OS_AUTH_URL=http://keystone:5000/v3 OS_USERNAME=admin OS_PASSWORD="$MIGRATOR_PASSWORD" OS_PROJECT_NAME=admin
export OS_USER_DOMAIN_ID=default OS_PROJECT_DOMAIN_ID=default OS_IDENTITY_API_VERSION=3
until openstack catalog list >/dev/null; do sleep 1; done
[ -z "$(openstack endpoint list --service compute -f value 2>/dev/null)" ] || exit 0
openstack service create --name nova compute
openstack endpoint create --region RegionOne compute public http://localhost:8774/v2.1
