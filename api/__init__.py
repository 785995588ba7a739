"""Types of the API, their validation and encoding, and its client. Imports no other package of ours."""
