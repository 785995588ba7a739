"""Text and JSON to objects."""
