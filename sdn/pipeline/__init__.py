"""The flows of the bridge br0, from the desired network of the node. Pure."""
