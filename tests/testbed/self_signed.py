"""A self-signed certificate."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def self_signed(directory: Path) -> ssl.SSLContext:
    """Return a server's context with a new certificate for another host name, which is written to the directory."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    day, now = timedelta(days=1), datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now - day, now + day)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("another.example")]), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = directory / "pem"
    plain = serialization.NoEncryption()
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    pem.write_bytes(key.private_bytes(encoding, form, plain) + certificate.public_bytes(encoding))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    return context
