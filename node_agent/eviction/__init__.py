"""Eviction under pressure."""
