"""The reconcile loop, driver errors, and what every daemon shares: settings, logging, health, listener."""
