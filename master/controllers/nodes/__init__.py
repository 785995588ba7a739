"""Controllers of nodes: heartbeats, taints, evictions, and pods of missing nodes."""
