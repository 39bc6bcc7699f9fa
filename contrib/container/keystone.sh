# SPDX-License-Identifier: Apache-2.0

# The start of Keystone: its schema, its keys, its users and its catalog, and then its API. Each is safe to repeat.
umask 077
until keystone-manage db_sync; do sleep 1; done
keystone-manage fernet_setup
bootstrap() { keystone-manage bootstrap --bootstrap-password "$MIGRATOR_PASSWORD" --bootstrap-region-id RegionOne "$@"; }
bootstrap --bootstrap-public-url http://localhost:5000/v3 --bootstrap-internal-url http://keystone:5000/v3
# Bootstrap creates a user with the role admin in a project, and a service with its endpoints, under any names.
bootstrap --bootstrap-username migrator --bootstrap-project-name service --bootstrap-service-name keystone
cat > gunicorn.conf.py <<END
bind = "0.0.0.0:5000"
threads = 4
wsgi_app = "keystone.wsgi.api:application"
END
exec gunicorn
