"""Controllers: pure functions that read objects and return the actions that bring them to the desired state."""
