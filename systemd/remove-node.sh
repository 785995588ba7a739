#!/usr/bin/env bash
# Removes what the daemons of a node have made on this host: containers and mounts of pods, bridge, links, firewall tables,
# Docker's options. Sysctls get the values that podlane-sdn found. The daemons are stopped; configuration and state stay.
# --reset makes the host leave its cluster (`podlane node reset`): it stops the daemons, and removes their state, too.
# Commands, units and configuration stay, as does a master of this host.
set -euo pipefail

state=/var/lib/podlane
units=(podlane-docker-network.path podlane-node-agent.service podlane-sdn.service)

stop_daemons() {
    local unit
    for unit in "${units[@]}"; do
        ! systemctl cat "$unit" >/dev/null 2>&1 || systemctl disable --quiet --now "$unit"
    done
    systemctl reset-failed "${units[@]}" 2>/dev/null || true
}

# The pods of this node are those that the agent has a directory of.
remove_pods() {
    local folder target
    local -a containers
    [[ -d $state/node-agent/pods ]] || return 0
    docker version >/dev/null 2>&1 || echo "Docker does not answer; containers of pods stay" >&2
    for folder in "$state"/node-agent/pods/*/; do
        [[ -d $folder ]] || continue
        mapfile -t containers < <(docker ps -aq --filter "label=io.kubernetes.pod.uid=$(basename "$folder")")
        if ((${#containers[@]})); then docker rm -f "${containers[@]}" >/dev/null; fi
    done
    # The deepest mount first: what is mounted in a pod's directory may be a file system of somebody else.
    # The kernel writes blanks and backslashes in octal. Containers choose names of mounts that they share.
    while read -r target; do umount "$(printf '%b' "${target//\\/\\0}")"; done < <(
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

remove_docker_options() {
    [[ -e /run/systemd/system/docker.service.d/zz-podlane.conf ]] || return 0
    rm /run/systemd/system/docker.service.d/zz-podlane.conf
    systemctl daemon-reload
}

# Local volumes are data of users, and stay.
remove_state() {
    [[ ! -d $state/node-agent ]] ||
        find "$state/node-agent" -mindepth 1 -maxdepth 1 ! -name local-volumes -exec rm -rf --one-file-system {} +
    rm -rf --one-file-system "$state/sdn"
    rm -f /run/podlane/docker-network /run/podlane/sdn.sock
}

[[ $# == 0 || ($# == 1 && $1 == --reset) ]] || { echo "usage: $0 [--reset]" >&2; exit 2; }
[[ $(id -u) == 0 ]] || { echo "$0: run as root" >&2; exit 1; }
[[ $# == 0 ]] || stop_daemons
remove_pods
remove_network
restore_sysctls
remove_docker_options
[[ $# == 0 ]] || remove_state
