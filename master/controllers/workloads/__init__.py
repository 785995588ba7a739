"""Pods that are made from templates, and how they are replaced."""
