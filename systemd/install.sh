#!/usr/bin/env bash
# Installs Podlane on this host: commands into /opt/podlane, units, and examples of the configuration files that are
# missing. Usage: install.sh master|node. Run it again after an update; nothing that runs is interrupted.
# A dockerd that is here already stays as it is, whoever has installed it. uninstall.sh is the way back. Packages (`make deb`)
# are the other way of installation, and take the place of this one.
set -euo pipefail

role=${1:-}
source=$(cd "$(dirname "$0")/.." && pwd)
python_packages=(python3-venv)

case "$role" in
master) services=(podlane-master) configs=(master) packages=("${python_packages[@]}") ;;
node)
    services=(podlane-sdn podlane-node-agent)
    configs=(sdn node-agent)
    packages=("${python_packages[@]}" openvswitch-switch nftables iproute2 busybox-static catatonit tcpdump dbus)
    ;;
*)
    echo "usage: $0 master|node" >&2
    exit 2
    ;;
esac

[[ $(id -u) == 0 ]] || { echo "$0: run as root" >&2; exit 1; }

# shellcheck source=systemd/docker-settings.sh
. "$source/systemd/docker-settings.sh"
# shellcheck source=systemd/packages.sh
. "$source/systemd/packages.sh"
refuse_packages "Upgrade it by apt, or remove it before: apt remove podlane"

if [[ $role == node ]]; then
    if has_docker; then
        echo "Docker is here already; it and its configuration stay as they are"
    else
        packages+=(docker.io)
    fi
fi
missing=()
for package in "${packages[@]}"; do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
done
if ((${#missing[@]})); then
    echo "installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update
    if [[ " ${missing[*]} " == *" docker.io "* ]]; then
        command -v python3 >/dev/null ||
            apt-get -qq install -y --no-install-recommends --no-remove "${python_packages[@]}" >/dev/null
        write_docker_settings
    fi
    apt-get -qq install -y --no-install-recommends --no-remove "${missing[@]}" >/dev/null
fi

echo "installing the commands into /opt/podlane"
[[ -x /opt/podlane/bin/python ]] || python3 -m venv /opt/podlane
/opt/podlane/bin/pip install -q --disable-pip-version-check "$source"
install -d /opt/podlane/share/docs/{adr,operations} /opt/podlane/share/kubernetes /opt/podlane/libexec /etc/podlane
cp -rT --no-preserve=mode,ownership "$source/monitoring" /opt/podlane/share/monitoring
for folder in . adr operations; do
    install -m 0644 "$source/docs/$folder"/*.md "/opt/podlane/share/docs/$folder/"
done
install -m 0644 "$source"/systemd/kubernetes/*.yaml /opt/podlane/share/kubernetes/
for script in uninstall remove-node; do
    install -m 0755 "$source/systemd/$script.sh" "/opt/podlane/libexec/$script"
done
install -m 0644 "$source/systemd/packages.sh" /opt/podlane/libexec/packages.sh
for command in podlane "${services[@]}"; do
    ln -sfn "/opt/podlane/bin/$command" "/usr/local/bin/$command"
done

for config in "${configs[@]}"; do
    if [[ ! -e /etc/podlane/$config.yaml ]]; then
        install -m 0644 "$source/systemd/$config.yaml" "/etc/podlane/$config.yaml"
        echo "/etc/podlane/$config.yaml is an example: adjust it"
    fi
done
for service in "${services[@]}"; do
    install -m 0644 "$source/systemd/$service.service" /etc/systemd/system/
done
install -m 0644 "$source/systemd/podlane.target" /etc/systemd/system/
install -D -m 0644 "$source/systemd/podlane.tmpfiles" /usr/lib/tmpfiles.d/podlane.conf
systemd-tmpfiles --create podlane.conf
if [[ $role == master ]]; then
    install -D -m 0644 "$source/systemd/podlane.sysusers" /usr/lib/sysusers.d/podlane.conf
    systemd-sysusers podlane.conf
    # The master ran as root in earlier versions, and could read whatever its settings name.
    if ! problem=$(runuser -u podlane-master -- /opt/podlane/bin/podlane-master --check 2>&1 >/dev/null); then
        echo "/etc/podlane/master.yaml, as the user podlane-master reads it: $problem" >&2
    fi
fi
if [[ $role == node ]]; then
    install -m 0644 "$source"/systemd/podlane-docker-network.{path,service} /etc/systemd/system/
    install -m 0755 "$source/systemd/docker-network.sh" /opt/podlane/libexec/docker-network
    install -m 0644 "$source/systemd/podlane-uplink.service" /etc/systemd/system/
    install -m 0755 "$source/systemd/uplink.sh" /opt/podlane/libexec/uplink
    # An earlier version replaced the command of docker.service, also where it is another one than Debian's.
    rm -f /etc/systemd/system/docker.service.d/podlane.conf
    rmdir --ignore-fail-on-non-empty /etc/systemd/system/docker.service.d 2>/dev/null || true
fi
systemctl daemon-reload
echo "start with: systemctl enable --now ${services[*]}"
