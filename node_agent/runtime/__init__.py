"""Containers of a pod: configuration, actions, start, stop, cache (kubelet: kuberuntime, pleg, lifecycle)."""
