"""Nodes that are well, silent or gone, and what becomes of their pods."""
