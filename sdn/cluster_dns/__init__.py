"""The name server of the node, at the gateway address of its pods."""
