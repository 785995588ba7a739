"""The Docker Engine API (the CRI side)."""
