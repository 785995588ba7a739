"""Images: presence, credentials, garbage collection."""
