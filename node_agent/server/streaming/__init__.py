"""Protocols below exec, attach and port-forward."""
