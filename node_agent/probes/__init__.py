"""Probes (kubelet: prober)."""
