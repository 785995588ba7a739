"""What this node is known by: its client certificate to the master, and the certificate of its own server."""
