"""Traces, packet captures and reports for administrators: the NodeQuery objects of this node."""
