#!/usr/bin/env bash
# Removes Podlane from this host: daemons, units, containers of pods, bridge, firewall tables, sysctls, /opt/podlane.
# Configuration (/etc/podlane) and state (/var/lib/podlane) stay unless --purge is given. Packages, Docker with its
# configuration, and everything that is not Podlane's stay in any case. Drain the node before.
# --reset makes the host leave its cluster (`podlane node reset`): everything of a node that runs or is kept goes, and
# commands, units and configuration stay, as does a master of this host.
set -euo pipefail

state=/var/lib/podlane
node_units=(podlane-docker-network.path podlane-node-agent.service podlane-sdn.service)
units=(podlane.target "${node_units[@]}" podlane-master.service)

stop_daemons() {
    local unit
    for unit in "$@"; do
        ! systemctl cat "$unit" >/dev/null 2>&1 || systemctl disable --quiet --now "$unit"
    done
}

# The pods of this node are those that the agent has a directory of.
remove_pods() {
    local folder target
    local -a containers
    [[ -d $state/node-agent/pods ]] || return 0
    for folder in "$state"/node-agent/pods/*/; do
        [[ -d $folder ]] || continue
        mapfile -t containers < <(docker ps -aq --filter "label=io.kubernetes.pod.uid=$(basename "$folder")")
        if ((${#containers[@]})); then docker rm -f "${containers[@]}" >/dev/null; fi
    done
    # The deepest mount first: what is mounted in a pod's directory may be a file system of somebody else.
    while read -r target; do umount "$target"; done < <(
        awk -v below="$state/node-agent/pods" '$5 == below || index($5, below "/") == 1 {print $5}' /proc/self/mountinfo | tac
    )
    find /var/log/pods /var/log/containers -xtype l -delete 2>/dev/null || true
    find /var/log/pods /var/log/containers -depth -type d -empty -delete 2>/dev/null || true
}

remove_network() {
    local table link rule
    if [[ -n $(ovs-vsctl --timeout=10 --if-exists get bridge br0 external_ids:podlane 2>/dev/null) ]]; then
        local type
        type=$(ovs-vsctl --timeout=10 get bridge br0 datapath_type | tr -d '"')
        ovs-vsctl --timeout=10 del-br br0
        ovs-vsctl --timeout=10 --if-exists del-zone-tp "${type:-system}" zone=1 2>/dev/null || true
        ovs-vsctl --timeout=10 --if-exists del-zone-tp "${type:-system}" zone=2 2>/dev/null || true
    fi
    # `ip -d` prints the alias of a link, by which ours are known, on a line of its own.
    while read -r link; do ip link del "$link" 2>/dev/null || true; done < <(
        ip -o link | sed -nE 's/^[0-9]+: ([^:@]+)[:@].*alias podlane( .*)?$/\1/p'
    )
    for table in "ip podlane" "ip podlane-services" "ip podlane-services-upgrade" "ip podlane-hostports" \
        "netdev podlane-guard"; do
        # shellcheck disable=SC2086 # two words
        nft delete table $table 2>/dev/null || true
    done
    while read -r rule; do nft delete rule ip filter FORWARD handle "$rule"; done < <(
        nft -a list chain ip filter FORWARD 2>/dev/null | sed -nE 's/.*comment "podlane".* # handle ([0-9]+)$/\1/p'
    )
}

# podlane-sdn keeps the values that it found. Docker's own bridge needs forwarding, whoever has switched it on.
restore_sysctls() {
    local name value
    [[ -e $state/sdn/sysctls ]] || return 0
    while IFS='=' read -r name value; do
        if [[ $name == net.ipv4.ip_forward && -e /sys/class/net/docker0 ]]; then
            echo "$name stays 1 for docker0"
        else
            sysctl -q -w "$name=$value" 2>/dev/null || true # those of tun0 are gone with it
        fi
    done <"$state/sdn/sysctls"
    rm "$state/sdn/sysctls"
}

remove_files() {
    local command
    for command in /usr/local/bin/podlane*; do
        [[ $(readlink "$command") != /opt/podlane/* ]] || rm "$command"
    done
    rm -f /etc/systemd/system/podlane.target /etc/systemd/system/podlane-*.{service,path}
    rm -f /usr/lib/tmpfiles.d/podlane.conf /usr/lib/sysusers.d/podlane.conf
    rm -f /run/systemd/system/docker.service.d/zz-podlane.conf
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

remove_node() {
    if [[ -d $state/node-agent || -d $state/sdn ]]; then
        remove_pods
        remove_network
        restore_sysctls
    fi
}

# Local volumes are data of users, and stay.
reset() {
    stop_daemons "${node_units[@]}"
    systemctl reset-failed "${node_units[@]}" 2>/dev/null || true
    remove_node
    [[ ! -d $state/node-agent ]] ||
        find "$state/node-agent" -mindepth 1 -maxdepth 1 ! -name local-volumes -exec rm -rf --one-file-system {} +
    rm -rf --one-file-system "$state/sdn"
    rm -f /run/podlane/docker-network /run/podlane/sdn.sock
}

# The file that runs is deleted meanwhile: bash has read the function before.
main() {
    [[ $# == 0 || ($# == 1 && ($1 == --purge || $1 == --reset)) ]] || { echo "usage: $0 [--purge|--reset]" >&2; exit 2; }
    [[ $(id -u) == 0 ]] || { echo "$0: run as root" >&2; exit 1; }
    if [[ ${1:-} == --reset ]]; then
        reset
        exit
    fi
    stop_daemons "${units[@]}"
    remove_node
    remove_files
    if [[ ${1:-} == --purge ]]; then
        purge
    else
        echo "/etc/podlane and $state stay; --purge removes them"
    fi
    exit
}

main "$@"
