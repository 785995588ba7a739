#!/usr/bin/env bash
# Provisions a node. It joins by the trigger of the Vagrantfile. A second run installs the present clone; settings, also
# those of Docker, stay as they are.
set -euo pipefail

export DEBIAN_FRONTEND=noninteractive
apt-get -qq update
apt-get -qq install -y --no-install-recommends make >/dev/null
make -C /vagrant install-node
if [[ -e /etc/podlane/node.kubeconfig ]]; then
    systemctl restart podlane-sdn podlane-node-agent
fi
