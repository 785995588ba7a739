"""Values that drivers and pure modules share. No decisions."""
