"""Vagrant with libvirt and QEMU in a network of its own, and a box that needs no download."""
