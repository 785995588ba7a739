"""Parts that all objects share (Kubernetes: meta/v1)."""
