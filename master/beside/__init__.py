"""The controllers of the network on an API server that is not ours: the same decisions, written over its API."""
