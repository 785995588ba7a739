"""Every revision of every object: kept in a file, served from memory."""
