# Functions for install.sh and for the preinst of the package podlane-node: a dockerd that is here already stays as it
# is; one that comes with the installation finds settings at its first start.
# shellcheck shell=bash

# A package that is unpacked and was never configured comes with this run of apt, and has not started.
has_docker() {
    [[ $(dpkg-query -W -f '${db:Status-Status}/${Config-Version}' docker.io 2>/dev/null) != unpacked/ ]] || return 1
    command -v dockerd >/dev/null || [[ -n $(systemctl list-unit-files --no-legend docker.service 2>/dev/null) ]]
}

# Before Docker's first start: it does not take back firewall rules that it has once written.
write_docker_settings() {
    install -d /etc/docker
    python3 -I - /etc/docker/daemon.json <<'PYTHON'
import json, os, sys
file = sys.argv[1]
try:
    with open(file) as present:
        settings = json.load(present)
except FileNotFoundError:
    settings = {}
except ValueError as error:
    sys.exit(f"{file}: {error}; a JSON object is accepted. Nothing was installed")
if not isinstance(settings, dict):
    sys.exit(f"{file}: found {type(settings).__name__}; a JSON object is accepted. Nothing was installed")
wanted = {"iptables": False, "live-restore": True}
if not settings.keys() & {"bridge", "bip", "fixed-cidr", "default-gateway"}:
    wanted["bridge"] = "none"
added = {key: value for key, value in wanted.items() if key not in settings}
if added:
    with open(f"{file}.new", "w") as new:
        new.write(json.dumps({**settings, **added}, indent=2) + "\n")
    os.rename(f"{file}.new", file)
    print(f"{file}: added {json.dumps(added)}")
PYTHON
}
