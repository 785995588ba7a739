"""`podlane join`: makes this host a node of a cluster."""
