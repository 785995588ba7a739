"""The HTTPS API server."""
