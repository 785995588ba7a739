"""The Node object and its lease (kubelet: nodestatus, nodelease)."""
