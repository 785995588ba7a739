"""Declarations of resources: one file for each family of kinds."""
