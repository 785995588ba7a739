"""Objects, their revisions and the history for watches."""
