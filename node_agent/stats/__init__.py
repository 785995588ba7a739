"""Usage of node, pods and containers."""
