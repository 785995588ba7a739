"""Types of the core, storage, coordination and certificates groups."""
