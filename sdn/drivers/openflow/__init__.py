"""The OpenFlow 1.4 client of the bridge."""
