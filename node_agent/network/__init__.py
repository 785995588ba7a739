"""Pod networks, DNS files, host ports."""
