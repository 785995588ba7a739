"""SPDY/3.1: many streams of bytes over one carrier, as kubectl and API servers speak it to a node."""
