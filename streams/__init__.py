"""Byte streams: the stream protocol, the transports that carry streams, and SPDY/3.1."""
