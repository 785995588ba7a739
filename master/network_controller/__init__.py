"""The network controllers on another cluster's API server: the same decisions, written by its API."""
