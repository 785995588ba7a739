"""The userspace proxy mode: the daemon itself forwards the connections to services."""
