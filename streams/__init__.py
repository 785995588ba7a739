"""Bytes between two sides: what a stream is, and the carriers and protocols that make streams."""
