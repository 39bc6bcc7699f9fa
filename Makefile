# Thin on purpose: a machine with python3, python3-venv, make and git needs nothing else.
#
#   make demo [ARGS='--hosts 8 --json']   a whole cloud in one process drains one of its hosts
#   make demo-libvirt [ARGS=--json]       a drain moves real guests from a libvirt host (as root: installs libvirt and QEMU)
#   make test                             lint, unit tests, functional tests, a short simulation: minutes
#   make test-long                        everything there is, whole: a day (doc/source/testing.rst says when)
#   make test-simulation [SEEDS=3000]     the slow tests, the crash matrix, the model, planted bugs, every step again, random runs
#   make test-seeds [SEEDS=3000 FIRST=1]  random runs alone, from seed FIRST on
#   make test-eventlet                    what an importing service has of migrator, in a process that eventlet has patched
#   make test-elsewhere [SUITE=trixie]    make demo and make test on a bare Debian in a temporary folder (as root: installs debootstrap)
#   make test-real [EVERY=3]              against a private RabbitMQ, PostgreSQL, MariaDB, Placement and Keystone (as root: installs them)
#   make test-libvirt                     against real guests of QEMU, moved by libvirt (as root: installs them)
#   make test-nova [EVERY=12]             against a stock nova, in a virtual environment of its own (as root: installs its servers)
#   make test-mutants [ARGS=--list]       which tests find each of more than 60 bugs, put in one at a time (takes hours)
#   make long-run ARGS='--state DIR'      a piece of the long run: drains on processes that die all the time (as root)
#   make bench [ARGS='--on sqlite --quick'] what a migration costs the control plane, as JSON
#   make bench ARGS=--check               each figure as goal / here; fails if one is above its goal or has grown
#   make bench-libvirt [ARGS='--runs 20'] how much longer a move takes than by virsh, on real guests (as root)
#   make openapi                          writes doc/source/_static/openapi.json, after a change of a URL or a schema
#   make lock | sbom                      the versions of the image of contrib/container; and their list, for a scanner
#   make lint | docs | genconfig | genpolicy | clean
#
# PYTHON=python3.13 picks the interpreter, VENV=DIR the place, JOBS=N the test processes, WAITING=N those that mostly
# wait for servers.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
ARGS ?=
SEEDS ?= 3000
LONG_SEEDS ?= 100000
# what waits for servers most of the time, each process for its own
WAITING ?= 3
FIRST ?= 1
SUITE ?= trixie
# above 1, test-elsewhere runs test-sample instead of make test;
# test-real sends an Nth of 20,000 requests to each database, and runs every Nth of the functional tests again on other
# parts; above 1, test-nova leaves out the slow tests,
# and kills a drain before every Nth of its writes
EVERY ?= 1

export PYTHON VENV
# images of containers set it; then each process compiles all of migrator again, and each pytest all of the tests
unexport PYTHONDONTWRITEBYTECODE
# make says "Entering directory" on stdout when another make calls it; `make demo ARGS=--json` prints only JSON there
MAKEFLAGS += --no-print-directory

# of the simulations what takes seconds
SHORT = $(addprefix tests/simulation/,test_matrix.py test_seeds.py test_reexecution.py)

# what has a Placement in its own process, and may as well have another
ALLOCATIONS = $(ON_PLACEMENT) $(addprefix tests/functional/,test_audit.py test_force_nested.py)

# what has the fake Placement in make test: what is about Placement, and what needs one
ON_PLACEMENT = tests/unit/placement_client
WITH_PLACEMENT = tests/unit/nova tests/functional/test_drain_of_nova.py

# what is left out where there is no driver for PostgreSQL
WITH_DRIVER = $(addprefix tests/unit/cmd/,\
    test_manage.py::test_unreachable_server_is_reported_at_once_without_its_password \
    test_manage.py::test_refused_password_exits_2_and_is_not_printed \
    test_status.py::test_unreachable_database_is_a_failure \
    'test_conductor.py::test_metrics_are_served_on_the_configured_port[eventlet]') \
    tests/unit/db/sql/test_engine.py::TestUnreachable \
    tests/unit/doc/test_reliability.py

# the tests call `openstack`, `migrator-demo` and others by name
IN_VENV = PATH="$(abspath $(VENV))/bin:$$PATH"

.PHONY: demo demo-libvirt test test-sample test-elsewhere test-long test-simulation test-seeds test-eventlet test-real test-libvirt test-nova
.PHONY: test-mutants long-run bench bench-libvirt lint docs genconfig genpolicy openapi lock sbom clean
.NOTPARALLEL:

demo:
	@tools/venv.sh demo
	@$(VENV)/bin/migrator-demo $(ARGS)

demo-libvirt:
	@tools/demo-libvirt.sh $(ARGS)

test: lint
	@tools/venv.sh demo test
	$(IN_VENV) MIGRATOR_CELLS=200 MIGRATOR_SEEDS=10 $(VENV)/bin/python -m pytest -n $(WAITING) --dist worksteal \
	    -m 'not slow' tests/unit tests/functional $(SHORT) $(ARGS)

# The unit tests, and every Nth functional test: make test without lint, which sees the same code on each machine, and
# without the short simulation.
test-sample:
	@tools/venv.sh demo test
	$(IN_VENV) $(VENV)/bin/python -m pytest -n $(WAITING) --dist worksteal -m 'not slow' tests/unit $(ARGS)
	$(IN_VENV) MIGRATOR_EVERY=$(EVERY) $(VENV)/bin/python -m pytest -n $(WAITING) --dist worksteal -m 'not slow' \
	    tests/functional $(ARGS)

# What a new user does on another machine. Where debootstrap cannot be installed this is left out, saying so; with CI=true it fails.
test-elsewhere:
	-@tools/packages.sh elsewhere
	@tools/elsewhere.sh $(SUITE) 'make demo' 'make $(if $(filter 1,$(EVERY)),test,test-sample EVERY=$(EVERY))'

# Whichever fault is injected where, everything ends in order. First the tests that make test leaves out, since they
# simulate many minutes or many faults, or start a process for each command.
# Where there is no browser the tests of the page are left out, saying so; with CI=true they fail.
test-simulation:
	-@tools/packages.sh test
	@tools/venv.sh demo test
	$(IN_VENV) $(VENV)/bin/python -m pytest -n $(WAITING) --dist worksteal -m slow tests/unit tests/functional $(ARGS)
	MIGRATOR_SEEDS=$(SEEDS) $(VENV)/bin/python -m pytest -n $(JOBS) --dist worksteal tests/simulation $(ARGS)

# Random runs alone, from another seed on.
test-seeds:
	@tools/venv.sh demo test
	MIGRATOR_SEEDS=$(SEEDS) MIGRATOR_FIRST_SEED=$(FIRST) $(VENV)/bin/python -m pytest -n $(JOBS) --dist worksteal \
	    tests/simulation/test_seeds.py $(ARGS)

# The cheapest first. Each part says how much of it there is.
test-long: export MIGRATOR_REQUESTS = 20000
test-long: export MIGRATOR_SEQUENCES = 2000
test-long: export MIGRATOR_OUTAGE = 120
test-long: export MIGRATOR_UPGRADES = 10
test-long: export MIGRATOR_COMPOSE = 1
test-long:
	$(MAKE) test
	$(MAKE) test-eventlet
	for suite in bookworm trixie forky; do $(MAKE) test-elsewhere SUITE=$$suite || exit; done
	MIGRATOR_LONG=1 MIGRATOR_OTHER_CELLS=1 MIGRATOR_NIGHTS=1000 MIGRATOR_AGAIN=2000 MIGRATOR_OUTAGE_SEEDS=1000 MIGRATOR_EVACUATIONS=1000 MIGRATOR_COLD_SEEDS=1000 MIGRATOR_BOUNDS_SEEDS=1000 MIGRATOR_DRAIN_SEEDS=1000 MIGRATOR_MAINTENANCE_SEEDS=3000 MIGRATOR_EMPTIED=500 MIGRATOR_AUDITED=5000 $(MAKE) test-simulation SEEDS=60
	$(MAKE) test-real
	$(MAKE) test-libvirt
	$(MAKE) test-nova
	$(MAKE) test-mutants
	$(VENV)/bin/python -m migrator.simulator --seeds $(LONG_SEEDS) --jobs $(JOBS)
	$(MAKE) bench ARGS='--check --on sqlite'
	$(MAKE) bench ARGS='--check --on postgresql'
	$(MAKE) bench ARGS='--check --on mariadb'

# The same files as in the native run, and a few of its own.
test-eventlet:
	@tools/venv.sh demo test eventlet
	$(IN_VENV) $(VENV)/bin/python -m tests.patched $(ARGS)

# Where a server cannot be installed its tests are left out, saying so; with CI=true they fail.
test-real:
	-@tools/packages.sh real
	@tools/venv.sh demo test eventlet postgresql mariadb real
	$(IN_VENV) MIGRATOR_REQUESTS=$${MIGRATOR_REQUESTS:-$$((20000 / $(EVERY)))} $(VENV)/bin/python -m pytest -n $(WAITING) --dist worksteal tests/real \
	    --ignore=tests/real/libvirt --ignore=tests/real/nova $(ARGS)
	@echo 'What needs the driver for PostgreSQL, which is not there in make test:'
	$(IN_VENV) $(VENV)/bin/python -m pytest $(WITH_DRIVER) $(ARGS)
	@echo 'The allocation tests again, Placement being served over HTTP with PostgreSQL behind it:'
	$(IN_VENV) MIGRATOR_EVERY=$(EVERY) MIGRATOR_REAL_PLACEMENT=1 $(VENV)/bin/python -m pytest -p tests.real.over_http --timeout 300 $(ALLOCATIONS) $(ARGS)
	@echo 'The functional tests again, with the real Placement in their process:'
	$(IN_VENV) MIGRATOR_EVERY=$(EVERY) $(VENV)/bin/python -m pytest -n $(JOBS) --dist worksteal --real-placement tests/functional $(ARGS)
	@echo 'All tests of the Placement client, and the tests of a stock Nova, with the real Placement:'
	$(IN_VENV) MIGRATOR_REAL_PLACEMENT=1 $(VENV)/bin/python -m pytest -n $(JOBS) --dist worksteal $(ON_PLACEMENT) $(ARGS)
	$(IN_VENV) MIGRATOR_EVERY=$(EVERY) MIGRATOR_REAL_PLACEMENT=1 $(VENV)/bin/python -m pytest -n $(JOBS) --dist worksteal $(WITH_PLACEMENT) $(ARGS)
	@echo 'The functional tests again, the services being processes:'
	$(IN_VENV) MIGRATOR_EVERY=$(EVERY) $(VENV)/bin/python -m pytest -n $(WAITING) --dist worksteal -p tests.real.on_processes --timeout 300 \
	    tests/functional $(ARGS)

# Real guests, on two libvirt hosts of each test process. The binding needs libvirt's headers; where they are not to be had
# these tests are left out, saying so.
test-libvirt:
	-@tools/packages.sh real libvirt
	@tools/venv.sh demo test eventlet postgresql real
	-@tools/venv.sh libvirt
	$(IN_VENV) $(VENV)/bin/python -m pytest -n $(JOBS) --dist worksteal \
	    tests/real/libvirt tests/unit/virt/libvirt $(ARGS)
	@echo 'The driver by itself again, in a process that eventlet has patched:'
	$(IN_VENV) $(VENV)/bin/python -m tests.patched tests/unit/virt/libvirt $(ARGS)

# A nova as published, whose requirements are not ours. Where it cannot be installed these tests are left out, saying so.
test-nova:
	-@tools/packages.sh real
	@tools/venv.sh demo test mariadb real
	-@$(MAKE) .venv-nova/ready
	$(IN_VENV) MIGRATOR_KILL_EVERY=$(EVERY) $(VENV)/bin/python -m pytest tests/real/nova $(ARGS)

.venv-nova/ready: tests/real/nova/requirements.txt
	@echo 'migrator: installing nova into .venv-nova (some minutes the first time)'
	@$(PYTHON) -m venv --clear .venv-nova
	@PIP_USER=0 .venv-nova/bin/python -m pip install --disable-pip-version-check --quiet -r $<
	@cp $< $@

# How much the tests see: each bug is put into a copy of the tree, and the stages run until one of them fails.
test-mutants:
	@tools/venv.sh demo test eventlet
	$(IN_VENV) $(VENV)/bin/python -m tests.mutants --jobs $(JOBS) $(ARGS)

# doc/source/reliability.rst has what it does, and its figures.
long-run:
	-@tools/packages.sh real >&2
	@tools/venv.sh demo test postgresql real
	@nice -n 5 $(VENV)/bin/python -W ignore -m tests.long_run $(ARGS)

bench:
	@tools/venv.sh demo test postgresql mariadb real
	@$(VENV)/bin/python benchmarks/control_plane.py $(ARGS)

bench-libvirt:
	-@tools/packages.sh real libvirt >&2
	@tools/venv.sh demo test postgresql real libvirt
	@$(VENV)/bin/python benchmarks/libvirt_overhead.py $(ARGS)

lint:
	@tools/venv.sh demo test lint
	$(VENV)/bin/python -m ruff check .
	$(VENV)/bin/python -m ruff format --check .
	$(VENV)/bin/python -m mypy

docs:
	@tools/venv.sh docs
	$(VENV)/bin/python -m sphinx -W --keep-going -b html doc/source doc/build/html
	@echo "read doc/build/html/index.html"

genconfig:
	@tools/venv.sh demo
	$(VENV)/bin/oslo-config-generator --config-file etc/migrator/migrator-config-generator.conf

genpolicy:
	@tools/venv.sh demo
	$(VENV)/bin/oslopolicy-sample-generator --config-file etc/migrator/migrator-policy-generator.conf

openapi:
	@tools/venv.sh demo
	$(VENV)/bin/python -m migrator.api.openapi > doc/source/_static/openapi.json

# The versions with which the image is built, after a change of the dependencies or when newer ones are wanted.
LOCK = contrib/container/requirements.lock
lock:
	$(PYTHON) -m venv --clear build/lock
	PIP_USER=0 build/lock/bin/python -m pip install --disable-pip-version-check --quiet '.[image]'
	build/lock/bin/python -m pip freeze --all --exclude pip --exclude openstack-migrator > $(LOCK)

# In an environment of its own: with what cyclonedx needs, each process takes a second longer to import jsonschema.
sbom:
	@$(PYTHON) -m venv build/sbom
	@PIP_USER=0 build/sbom/bin/python -m pip install --disable-pip-version-check --quiet 'cyclonedx-bom>=7.5' >&2
	@build/sbom/bin/python -m cyclonedx_py requirements --pyproject pyproject.toml --mc-type application $(LOCK)

clean:
	rm -rf $(VENV) .venv-nova .tox .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist doc/build releasenotes/build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf migrator.egg-info
