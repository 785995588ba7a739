"""`podlane bundle`: collects one archive for support, without secrets."""
