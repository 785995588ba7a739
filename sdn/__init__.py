"""Connects pods and keeps projects apart: br0, tun0, vxlan0, and the flows between them."""
