"""What the node, its pods and their containers use, and the documents that tell it: pure but for `reports`."""
