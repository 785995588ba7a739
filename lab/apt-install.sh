#!/usr/bin/env bash
# Installs Debian packages, with a line for each fifth of the downloads and of the installation: apt-install.sh PACKAGE...
set -euo pipefail

begin=$SECONDS
say() { printf '[%4ds] %s\n' $((SECONDS - begin)) "$1"; }

# Reads the lines of APT::Status-Fd (README.progress-reporting of apt): KIND:ITEM:PERCENT:TEXT.
report() {
    local kind percent step last=""
    while IFS=: read -r kind _ percent _; do
        case $kind in
        dlstatus) step="downloading packages" ;;
        pmstatus) step="installing packages" ;;
        *) continue ;;
        esac
        step="$step: $((${percent%%[.,]*} / 20 * 20)) %"
        [[ $step == "$last" ]] || say "$step"
        last=$step
    done
}

export DEBIAN_FRONTEND=noninteractive
say "reading the lists of packages"
apt-get -qq update
# Without apt-utils, debconf says each time that it asks its questions later: there are none.
apt-get -qq install -y --no-install-recommends -o APT::Status-Fd=3 "$@" 3>&1 >/dev/null </dev/null \
    2> >(grep -v '^debconf: delaying package configuration' >&2 || true) | report
say "$# packages are installed, with those that they need"
