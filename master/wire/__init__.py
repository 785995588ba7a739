"""How objects are said: bodies and answers, tables, discovery, schemas."""
