"""The HTTPS server on port 10250."""
