"""Cgroups of pods (kubelet: cm)."""
