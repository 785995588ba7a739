"""Where pods come from (kubelet: config)."""
