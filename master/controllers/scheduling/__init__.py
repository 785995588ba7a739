"""Which pod goes to which node."""
