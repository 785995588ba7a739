"""What becomes of a write: patches, owners of fields, what a deletion leaves."""
