"""Cgroups of pods and of the quality of service classes (kubelet: cm)."""
