"""`podlane network trace`: explains what becomes of a packet."""
