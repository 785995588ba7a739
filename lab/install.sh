#!/usr/bin/env bash
# Installs packages, with lines that say how far it is. Usage: install.sh apt PACKAGE... | install.sh pip PIP ARGUMENT...
set -euo pipefail

begin=$SECONDS
say() { printf '[%4ds] %s\n' $((SECONDS - begin)) "$1"; }

# A line for each fifth of apt's work. Reads APT::Status-Fd (README.progress-reporting of apt): KIND:ITEM:PERCENT:TEXT.
report_apt() {
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

# A line for every fifth package that pip finds.
report_pip() {
    local line found=0
    while IFS= read -r line; do
        case $line in
        Collecting*) found=$((found + 1)); ((found % 5)) || say "$found Python packages are found" ;;
        "Installing collected packages:"*) say "installing $found Python packages" ;;
        esac
    done
}

is_installed() { [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

# Debian's package starts a registry at each start of the machine, at port 5000, where that of a lab listens.
stop_registry() {
    update-rc.d docker-registry disable
    invoke-rc.d docker-registry stop
}

case ${1:-} in
apt)
    export DEBIAN_FRONTEND=noninteractive
    had_registry=
    ! is_installed docker-registry || had_registry=1
    say "reading the lists of packages"
    apt-get -qq update
    # Without apt-utils, debconf says each time that it asks its questions later: there are none.
    apt-get -qq install -y --no-install-recommends -o APT::Status-Fd=3 "${@:2}" 3>&1 >/dev/null </dev/null \
        2> >(grep -v '^debconf: delaying package configuration' >&2 || true) | report_apt
    if [[ -z $had_registry ]] && is_installed docker-registry; then stop_registry >/dev/null 2>&1 || true; fi
    say "the packages are installed"
    ;;
pip)
    "$2" install --disable-pip-version-check --no-color --progress-bar off "${@:3}" \
        2> >(grep -v '^WARNING: Location' >&2 || true) | report_pip
    say "the Python packages are installed"
    ;;
*)
    echo "usage: $0 apt PACKAGE... | $0 pip PIP ARGUMENT..." >&2
    exit 2
    ;;
esac
