"""The OAuth server: logs users in and gives tokens to clients (RFC 6749, RFC 7636, OpenShift)."""
