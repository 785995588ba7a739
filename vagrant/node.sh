#!/usr/bin/env bash
# Provisions a node: node.sh NAME ADDRESS MASTER. Its kubeconfig comes from the master, encrypted with JOIN_SECRET.
set -euo pipefail
name=$1 address=$2 master=$3

install -d /etc/podlane /etc/docker
# Pods have their own network; Docker's rules would stand in the way of theirs.
echo '{"iptables": false, "bridge": "none"}' >/etc/docker/daemon.json
for config in sdn node-agent; do
    printf 'nodeName: %s\nnodeIp: %s\nkubeconfig: /etc/podlane/node.kubeconfig\n' "$name" "$address" \
        >"/etc/podlane/$config.yaml"
done
apt-get -qq install -y curl make openssl >/dev/null
make -C /vagrant install-node
umask 077
curl -fsS --retry 30 --retry-delay 2 --retry-all-errors "http://$master:8000/$name.kubeconfig.enc" |
    openssl enc -d -aes-256-cbc -pbkdf2 -pass env:JOIN_SECRET -out /etc/podlane/node.kubeconfig
/opt/podlane/bin/python -c 'from lab.images import load_pause; load_pause("/var/run/docker.sock")'
systemctl enable --now podlane-sdn podlane-node-agent
systemctl restart podlane-sdn podlane-node-agent
