"""Images of containers: presence, registry credentials, garbage collection."""
