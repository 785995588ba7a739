"""The drivers: they act and report, and decide nothing."""
