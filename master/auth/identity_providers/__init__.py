"""Identity providers: they check the passwords, headers or redirects by which people log in."""
