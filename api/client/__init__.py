"""The client of the API server (Kubernetes: client-go)."""
