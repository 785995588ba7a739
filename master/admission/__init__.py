"""What must hold of what is written, and what is filled in."""
