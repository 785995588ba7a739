"""SPDY/3.1: many byte streams over one connection, as kubectl and API servers use it towards a node."""
