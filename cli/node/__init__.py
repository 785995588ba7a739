"""`podlane node drain` and `podlane node remove`."""
