"""The HTTPS door and what stands behind each path."""
