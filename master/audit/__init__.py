"""Audit: which requests are recorded at which level, the events, and the log file."""
