"""Builds the man pages."""
