#!/usr/bin/env bash
# Makes the network card of this host a port of a bridge in Open vSwitch's datapath in user space, and moves addresses
# and routes of the card to the bridge: only through a bridge of that datapath do tunnels find their route.
# Usage: uplink up|down. /etc/podlane/uplink.conf has LINK=CARD, and BRIDGE=NAME if it is not br-uplink.
#
# `up` may run again at any time. If the default gateway answers before and not afterwards, or if the script ends half
# way, all is put back. The state file has addresses and routes for the next start: those of a bridge in user space are
# gone with the switch.
set -euo pipefail

config=${UPLINK_CONFIG:-/etc/podlane/uplink.conf}
state=${UPLINK_STATE:-/var/lib/podlane/uplink/network}
gateway_seconds=${UPLINK_GATEWAY_SECONDS:-10}

fail() {
    echo "<3>$*" >&2
    exit 1
}

# Bash does not read the file: its lines are settings, not commands.
setting() { sed -nE "s/^$1=([A-Za-z0-9_.-]{1,15})[[:space:]]*\$/\1/p" "$config" | tail -n 1; }

vsctl() { ovs-vsctl --timeout=15 "$@"; }

exists() { [[ -e /sys/class/net/$1 ]]; }

# Lines `address ADDRESS` and `route FAMILY ROUTE`, without what the kernel makes by itself.
read_network() {
    local family
    ip -o address show dev "$1" scope global | awk '!/ temporary | mngtmpaddr / { print "address", $4 }'
    for family in -4 -6; do
        ip "$family" route show dev "$1" | awk -v family="$family" \
            '!/ proto (kernel|ra) / && !/^fe80::/ { gsub(/ (linkdown|dead|expires [0-9a-z]+)/, ""); print "route", family, $0 }'
    done
}

# Routes through a gateway come last: they need those without.
write_network() {
    local kind rest family
    while read -r kind rest; do
        [[ $kind != address ]] || ip address replace "$rest" dev "$1"
    done <"$state"
    for family in -4 -6; do
        { grep "^route $family " "$state" || true; } | sort -s -k 4,4 -t ' ' | awk '{ print (/ via / ? 1 : 0), $0 }' |
            sort -s -n -k 1,1 | cut -d ' ' -f 4- | while read -r rest; do
            # shellcheck disable=SC2086 # words of a route
            ip "$family" route replace $rest dev "$1"
        done
    done
}

clear_network() {
    local family
    for family in -4 -6; do ip "$family" address flush dev "$1" scope global; done
}

has_network() { [[ -n $(ip -o address show dev "$1" scope global 2>/dev/null) ]]; }

gateway() { sed -nE 's/^route -4 default via ([0-9.]+).*/\1/p' "$state" | head -n 1; }

# Whether the gateway answers ARP, which no firewall filters. A datagram to its port of discard makes the kernel ask.
answers() {
    local address=$1 device=$2 tries
    ip neigh flush to "$address" dev "$device" 2>/dev/null || true
    for ((tries = 0; tries < gateway_seconds * 5; tries++)); do
        (echo >"/dev/udp/$address/9") 2>/dev/null || true
        [[ -z $(ip neigh show to "$address" dev "$device" nud reachable nud delay nud probe nud stale) ]] || return 0
        sleep 0.2
    done
    return 1
}

save_network() {
    local from
    for from in "$link" "$bridge"; do
        if has_network "$from"; then
            install -d -m 0700 "$(dirname "$state")"
            (umask 077 && read_network "$from" >"$state.new")
            mv "$state.new" "$state"
            return
        fi
    done
    [[ -s $state ]] || fail "$link has no address, and there is none from before in $state; nothing was changed"
}

# Restores the card. Every step may fail, so that the others are done.
put_back() {
    vsctl --if-exists del-br "$bridge" || true
    # The chain of podlane-sdn drops what the kernel receives from the card of such a bridge.
    nft delete chain netdev podlane-guard "$link" 2>/dev/null || true
    ip link set "$link" up || true
    write_network "$link" || true
}

up() {
    local to="" answered=0 subnet
    exists "$link" || fail "$config: there is no link $link; nothing was changed"
    if exists "$bridge" && ! vsctl br-exists "$bridge"; then
        fail "there is a link $bridge that is no bridge of Open vSwitch; nothing was changed"
    fi
    save_network
    to=$(gateway)
    # A gateway that is away for other reasons takes nothing back, nor from a bridge that is in use already.
    if [[ -n $to ]] && ! has_network "$bridge"; then
        if ! has_network "$link" || answers "$to" "$link"; then answered=1; fi
    fi
    trap 'trap - EXIT TERM INT HUP; put_back; fail "interrupted; $link is as before"' EXIT TERM INT HUP
    vsctl -- --may-exist add-br "$bridge" \
        -- set bridge "$bridge" datapath_type=netdev "other_config:hwaddr=$(<"/sys/class/net/$link/address")" \
        external_ids:podlane-uplink="$link" -- --may-exist add-port "$bridge" "$link"
    while ! exists "$bridge"; do sleep 0.05; done
    ip link set "$bridge" up
    ip link set "$link" up
    clear_network "$link"
    write_network "$bridge"
    # Whenever a link changes, the switch learns the kernel's routes anew, and drops what it tunnels meanwhile.
    while read -r subnet; do ovs-appctl -t "${UPLINK_SWITCH:-ovs-vswitchd}" ovs/route/add "$subnet" "$bridge" >/dev/null
    done < <(ip -4 route show dev "$bridge" proto kernel scope link | cut -d ' ' -f 1)
    if ((answered)) && ! answers "$to" "$bridge"; then
        trap - EXIT TERM INT HUP
        put_back
        fail "the gateway $to does not answer through $bridge; $link is as before"
    fi
    trap - EXIT TERM INT HUP
    echo "$link is a port of $bridge, which has its addresses"
}

down() {
    exists "$bridge" && vsctl br-exists "$bridge" || return 0
    [[ $(vsctl get bridge "$bridge" external_ids:podlane-uplink 2>/dev/null) == *"$link"* ]] || return 0
    save_network
    put_back
    rm -f "$state"
    echo "$link has its addresses again; $bridge is gone"
}

main() {
    [[ -r $config ]] || fail "$config cannot be read; a file with LINK=CARD is accepted"
    link=$(setting LINK) bridge=$(setting BRIDGE)
    bridge=${bridge:-br-uplink}
    [[ -n $link ]] || fail "$config: LINK is missing or no name of a link; for example LINK=eth0. Nothing was changed"
    [[ $bridge != br0 && $bridge != "$link" ]] || fail "$config: BRIDGE is $bridge; another name is accepted"
    case ${1:-} in
    up) up ;;
    down) down ;;
    *) echo "usage: $0 up|down" >&2; exit 2 ;;
    esac
}

main "$@"
