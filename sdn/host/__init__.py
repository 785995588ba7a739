"""What the node itself holds, whichever pods are attached: links, routes, firewall."""
