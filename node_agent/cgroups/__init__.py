"""Cgroups of pods and of QoS classes (kubelet: cm)."""
