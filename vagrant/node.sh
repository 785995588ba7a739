#!/usr/bin/env bash
# Provisions a node: node.sh NAME ADDRESS MASTER.
set -euo pipefail
name=$1 address=$2 master=$3

install -d /etc/podlane /etc/docker
# Pods have their own network; Docker's rules would stand in the way of theirs.
echo '{"iptables": false, "bridge": "none"}' >/etc/docker/daemon.json
for config in sdn node-agent; do
    printf 'nodeName: %s\nnodeIp: %s\nkubeconfig: /etc/podlane/node.kubeconfig\n' "$name" "$address" \
        >"/etc/podlane/$config.yaml"
done
/vagrant/systemd/install.sh node
curl -fsS --retry 30 --retry-delay 2 --retry-all-errors -o /etc/podlane/node.kubeconfig \
    "http://$master:8000/$name.kubeconfig"
chmod 0600 /etc/podlane/node.kubeconfig
/opt/podlane/bin/python -c 'import docker; from lab.images import load; load(docker.APIClient(version="1.41"))'
systemctl enable --now podlane-sdn podlane-node-agent
systemctl restart podlane-sdn podlane-node-agent
