"""Services on one node, as kube-proxy implements them."""
