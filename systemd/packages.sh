# A function for install.sh and uninstall.sh: a host has Podlane from a clone or from packages, not from both.
# shellcheck shell=bash

# Ends with an error if packages of Podlane are here. The argument says what to do instead.
refuse_packages() {
    local package state
    while read -r package state; do
        if [[ $state != not-installed && $state != config-files ]]; then
            echo "$package is installed as a package on this host; nothing was changed. $1" >&2
            exit 1
        fi
    done < <(dpkg-query -W -f '${Package} ${db:Status-Status}\n' podlane podlane-master podlane-node 2>/dev/null)
}
