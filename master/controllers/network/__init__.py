"""Subnets, lanes, and where services lead."""
