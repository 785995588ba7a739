"""Admission: checks and defaults of new and changed objects."""
