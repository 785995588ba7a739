"""The Docker Engine API: what the container runtime interface (CRI) is to a kubelet."""
