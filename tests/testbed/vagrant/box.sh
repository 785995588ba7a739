#!/usr/bin/env bash
# Makes a box for vagrant-libvirt: box.sh FOLDER WHEELS. A Debian 12 with the packages that install.sh installs, so that
# machines without the Internet are provisioned, too; the Python packages of WHEELS are in /opt/wheels. The kernel is
# beside the box, because QEMU starts it directly. Processors are emulated: KVM is not needed.
set -euo pipefail
folder=$1 wheels=$2
packages=(systemd-sysv dbus udev kmod ifupdown isc-dhcp-client iproute2 openssh-server sudo rsync ca-certificates procps
    linux-image-cloud-amd64 initramfs-tools make python3-venv openvswitch-switch docker.io nftables busybox-static
    catatonit tcpdump curl)

rm -rf "$folder"
mkdir -p "$folder/root"
mmdebstrap -q --variant=minbase --include="$(IFS=,; echo "${packages[*]}")" bookworm "$folder/root" 2>"$folder/log" ||
    { cat "$folder/log" >&2; exit 1; }
cd "$folder"
cp -r "$wheels" root/opt/wheels
printf '[global]\nno-index = true\nfind-links = /opt/wheels\n' >root/etc/pip.conf
chroot root useradd -m -s /bin/bash vagrant
echo 'vagrant ALL=(ALL) NOPASSWD: ALL' >root/etc/sudoers.d/vagrant
install -d -m 0700 root/home/vagrant/.ssh
cp /usr/share/vagrant/keys/vagrant.pub root/home/vagrant/.ssh/authorized_keys 2>/dev/null ||
    cp "$(find / -xdev -name vagrant.pub -path '*keys*' | head -1)" root/home/vagrant/.ssh/authorized_keys
chroot root chown -R vagrant:vagrant /home/vagrant
printf 'auto lo\niface lo inet loopback\nauto eth0\niface eth0 inet dhcp\n' >root/etc/network/interfaces
echo UseDNS no >root/etc/ssh/sshd_config.d/fast.conf
echo '/dev/vda / ext4 defaults 0 1' >root/etc/fstab
: >root/etc/machine-id
cp root/boot/vmlinuz-* kernel
cp root/boot/initrd.img-* initrd
truncate -s 6G base.raw
mkfs.ext4 -q -d root base.raw
qemu-img convert -O qcow2 base.raw box.img
rm -rf base.raw root
echo '{"provider": "libvirt", "format": "qcow2", "virtual_size": 6}' >metadata.json
cat >Vagrantfile <<VAGRANTFILE
Vagrant.configure("2") do |config|
  config.vm.boot_timeout = 1800
  config.vm.provider "libvirt" do |libvirt|
    libvirt.driver = "qemu"
    libvirt.cpu_mode = "maximum"
    libvirt.kernel = "$PWD/kernel"
    libvirt.initrd = "$PWD/initrd"
    libvirt.cmd_line = "root=/dev/vda rw mitigations=off nokaslr net.ifnames=0 console=ttyS0"
    libvirt.graphics_type = "none"
    libvirt.storage_pool_path = "/var/lib/libvirt/images"
  end
end
VAGRANTFILE
tar -cf podlane.box metadata.json Vagrantfile box.img
rm box.img
