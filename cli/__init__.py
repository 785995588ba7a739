"""The `podlane` command and the CNI plugin."""
