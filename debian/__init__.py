"""The Debian packages: what builds them and their repository."""
