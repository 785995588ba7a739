"""Volumes of pods (kubelet: volumemanager)."""
