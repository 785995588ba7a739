"""The command `podlane` against a real master."""
