"""Probes of containers (kubelet: prober)."""
