"""The node's certificates."""
