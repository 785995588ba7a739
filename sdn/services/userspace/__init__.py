"""The older proxy: connections to services end in the daemon, which opens others to the backends."""
