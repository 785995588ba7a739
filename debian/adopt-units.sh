#!/bin/sh
# Puts units of a package in force, for its postinst: adopt-units VERSION UNIT..., where VERSION is the one that was
# configured before, or empty. Units that systemd/install.sh wrote go, and links of enabled units follow. What runs is
# restarted, which loses no packet; what does not run is not started.
set -eu
before=$1
shift
for unit; do
    file=/etc/systemd/system/$unit
    [ -f "$file" ] || continue # a unit that is masked is a link to /dev/null
    if [ -n "$before" ]; then
        echo "$file stands before the unit of the package; remove it, unless you wrote it" >&2
    else
        rm "$file"
    fi
done
[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload
for unit; do
    for link in /etc/systemd/system/*.wants/"$unit"; do
        if [ -L "$link" ] && [ ! -e "$link" ]; then
            systemctl --quiet reenable "$unit"
        fi
    done
done
for unit; do
    case "$unit:$(systemctl show -P Type "$unit")" in
    *.target:*) ;; # would restart all daemons, before their packages are configured
    *:oneshot) ;;  # runs nothing; podlane-uplink would touch the network of the host for no reason
    *) deb-systemd-invoke try-restart "$unit" >/dev/null ;;
    esac
done
