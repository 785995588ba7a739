#!/usr/bin/env bash
# Provisions the master: master.sh ADDRESS PLUGIN. A second run installs the present clone; settings stay as they are.
set -euo pipefail
address=$1 plugin=$2

export DEBIAN_FRONTEND=noninteractive
apt-get -qq update
apt-get -qq install -y --no-install-recommends make >/dev/null
install -d /etc/podlane
if [[ ! -e /etc/podlane/master.yaml ]]; then
    printf 'advertiseAddress: %s\nplugin: %s\n' "$address" "$plugin" >/etc/podlane/master.yaml
fi
make -C /vagrant install-master
systemctl enable podlane-master
systemctl restart podlane-master
