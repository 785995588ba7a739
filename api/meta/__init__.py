"""What every object has (Kubernetes: meta/v1)."""
