"""What the master itself wishes of the objects: a look in, writes out."""
