"""Defaults and checks (Kubernetes: apis/core/validation and defaults)."""
