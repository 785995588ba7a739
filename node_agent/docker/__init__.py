"""The client of the Docker Engine API. It takes the place of the container runtime interface (CRI)."""
