#!/usr/bin/env bash
# Removes Podlane from this host: daemons, units, containers of pods, bridge, firewall tables, sysctls, /opt/podlane.
# Configuration (/etc/podlane) and state (/var/lib/podlane) stay unless --purge is given. Packages, Docker with its
# configuration, and everything that is not Podlane's stay in any case. Drain the node before.
set -euo pipefail

state=/var/lib/podlane
here=$(cd "$(dirname "$0")" && pwd)
suffix=; [[ $0 != *.sh ]] || suffix=.sh # in a clone
# shellcheck source=systemd/packages.sh
. "$here/packages.sh"
units=(podlane.target podlane-docker-network.path podlane-node-agent.service podlane-sdn.service podlane-master.service
    podlane-uplink.service)

stop_daemons() {
    local unit
    for unit in "${units[@]}"; do
        [[ ! -e /etc/systemd/system/$unit ]] || systemctl disable --quiet --now "$unit"
    done
}

remove_files() {
    local command
    for command in /usr/local/bin/podlane*; do
        [[ $(readlink "$command") != /opt/podlane/* ]] || rm "$command"
    done
    rm -f /etc/systemd/system/podlane.target /etc/systemd/system/podlane-*.{service,path}
    rm -f /usr/lib/tmpfiles.d/podlane.conf /usr/lib/sysusers.d/podlane.conf
    rm -rf /opt/podlane /run/podlane
    systemctl daemon-reload
    systemctl reset-failed 'podlane*' 2>/dev/null || true
}

purge() {
    if grep -q " $state/" /proc/self/mountinfo; then
        echo "$state has mounts; it stays" >&2
        exit 1
    fi
    rm -rf --one-file-system "$state" /etc/podlane
    ! getent passwd podlane-master >/dev/null || userdel podlane-master
}

# The file that runs is deleted meanwhile: bash has read the function before.
main() {
    [[ $# == 0 || ($# == 1 && $1 == --purge) ]] || { echo "usage: $0 [--purge]" >&2; exit 2; }
    [[ $(id -u) == 0 ]] || { echo "$0: run as root" >&2; exit 1; }
    refuse_packages "Remove it by apt: apt remove podlane, or apt purge podlane podlane-master podlane-node"
    stop_daemons
    if [[ -d $state/node-agent || -d $state/sdn ]]; then
        "$here/remove-node$suffix"
    fi
    # Last, because the host may be reached through it.
    if [[ -e /etc/podlane/uplink.conf ]]; then "$here/uplink$suffix" down; fi
    remove_files
    if [[ ${1:-} == --purge ]]; then
        purge
    else
        echo "/etc/podlane and $state stay; --purge removes them"
    fi
    exit
}

main "$@"
