"""Drivers, as far as they need no kernel and no switch."""
