"""The files of a certificate authority in the directory `pki` of a master. Pure.

The authority of CERTIFICATE and KEY signs. The others are trusted as well, while a cluster changes its authority.
"""

CERTIFICATE, KEY = "ca.crt", "ca.key"
NEXT_CERTIFICATE, NEXT_KEY = "ca-next.crt", "ca-next.key"
PREVIOUS_CERTIFICATE = "ca-previous.crt"
