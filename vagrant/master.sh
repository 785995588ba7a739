#!/usr/bin/env bash
# Provisions the master: master.sh ADDRESS PLUGIN NODES. The nodes fetch their kubeconfigs, encrypted with JOIN_SECRET,
# from port 8000 of the private network, which is served for an hour.
set -euo pipefail
address=$1 plugin=$2 nodes=$3

install -d /etc/podlane
cat >/etc/podlane/master.yaml <<CONFIG
advertiseAddress: $address
plugin: $plugin
CONFIG
apt-get -qq install -y curl make openssl >/dev/null
make -C /vagrant install-master
systemctl enable --now podlane-master
systemctl restart podlane-master

admin=/var/lib/podlane/master/admin.kubeconfig
for _ in $(seq 100); do
    [[ -e $admin ]] && curl -fsk "https://$address:8443/readyz" >/dev/null && break
    sleep 0.2
done

install -d -m 0700 /var/lib/podlane/join
for number in $(seq "$nodes"); do
    file=/var/lib/podlane/join/node-$number.kubeconfig.enc
    [[ -e $file ]] || /opt/podlane/bin/podlane node add "node-$number" --kubeconfig "$admin" |
        openssl enc -aes-256-cbc -pbkdf2 -pass env:JOIN_SECRET -out "$file"
done
systemctl is-active -q podlane-join ||
    systemd-run --unit=podlane-join --property=RuntimeMaxSec=3600 \
        python3 -m http.server 8000 --bind "$address" --directory /var/lib/podlane/join
