"""Where pods come from besides the master: a directory, a URL, and the node's own socket. One file for each."""
