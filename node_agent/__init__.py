"""Runs the pods of one node through Docker, as a kubelet does."""
