#!/usr/bin/env bash
# Installs Podlane on this host: commands into /opt/podlane, units, and examples of the configuration files that are
# missing. Usage: install.sh master|node. Run it again after an update; nothing that runs is interrupted.
set -euo pipefail

role=${1:-}
source=$(cd "$(dirname "$0")/.." && pwd)

case "$role" in
master) services=(podlane-master) configs=(master) packages=(python3-venv) ;;
node)
    services=(podlane-sdn podlane-node-agent)
    configs=(sdn node-agent)
    packages=(python3-venv openvswitch-switch docker.io nftables iproute2 busybox-static catatonit tcpdump dbus)
    ;;
*)
    echo "usage: $0 master|node" >&2
    exit 2
    ;;
esac

[[ $(id -u) == 0 ]] || { echo "$0: run as root" >&2; exit 1; }

missing=()
for package in "${packages[@]}"; do
    dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
done
if ((${#missing[@]})); then
    echo "installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update
    apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
fi

echo "installing the commands into /opt/podlane"
[[ -x /opt/podlane/bin/python ]] || python3 -m venv /opt/podlane
/opt/podlane/bin/pip install -q --disable-pip-version-check "$source"
install -d /opt/podlane/share/docs/{adr,operations} /opt/podlane/share/kubernetes /etc/podlane
for folder in . adr operations; do
    install -m 0644 "$source/docs/$folder"/*.md "/opt/podlane/share/docs/$folder/"
done
install -m 0644 "$source"/systemd/kubernetes/*.yaml /opt/podlane/share/kubernetes/

for config in "${configs[@]}"; do
    if [[ ! -e /etc/podlane/$config.yaml ]]; then
        install -m 0644 "$source/systemd/$config.yaml" "/etc/podlane/$config.yaml"
        echo "/etc/podlane/$config.yaml is an example: adjust it"
    fi
done
for service in "${services[@]}"; do
    install -m 0644 "$source/systemd/$service.service" /etc/systemd/system/
done
if [[ $role == node ]]; then
    install -m 0644 "$source"/systemd/podlane-docker-network.{path,service} /etc/systemd/system/
    install -D -m 0644 -t /etc/systemd/system/docker.service.d "$source"/systemd/docker.service.d/podlane.conf
fi
systemctl daemon-reload
echo "start with: systemctl enable --now ${services[*]}"
