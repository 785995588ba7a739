"""Admission webhooks: which are called for a write, what they are asked, and what their responses do. Pure."""
