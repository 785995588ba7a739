"""Requests that are answered by nodes and pods."""
