"""Values that drivers and policy share. No decisions."""
