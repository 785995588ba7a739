"""Private keys, certificate requests and certificates: PEM bytes in and out. Needs the large `cryptography` library.

The library behind it takes 8 MB: who stays small imports the values (`api/pem.py`) and not this.
"""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
from collections.abc import Iterable

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from api.pki.pem import BadPem, Certificate, Request, Subject

SELF_SIGNED_LIFE = datetime.timedelta(days=365)

LONGEST_REQUEST = 64 << 10
"""Bytes of a request as PEM."""

LEAST_RSA, LEAST_EC = 2048, 256
"""Bits of keys for which there are certificates."""


def new_key() -> bytes:
    """A private key (EC P-256, PKCS 8, not encrypted)."""
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def request(key: bytes, subject: Subject) -> bytes:
    """A request for a certificate (PKCS 10), signed by the key. Raises BadPem."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(_name(subject))
    if subject.names or subject.addresses:
        builder = builder.add_extension(_places(subject), critical=False)
    return builder.sign(_private(key), hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def read_request(pem: bytes) -> Request:
    """What is asked for. Raises BadPem."""
    try:
        found = x509.load_pem_x509_csr(pem)
        if not found.is_signature_valid:
            raise BadPem("the certificate request is not signed by its own key")
        subject = _subject(found.subject, found.extensions)
        places = _named_places(found.extensions)
    except (ValueError, InvalidSignature, UnsupportedAlgorithm, x509.DuplicateExtension) as error:
        raise BadPem(f"this is no PEM certificate request: {error}") from None
    more = (one for one in places if not isinstance(one, x509.DNSName | x509.IPAddress))
    plain = {NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME}
    others = (part for part in found.subject.rdns if len(part) > 1 or any(row.oid not in plain for row in part))
    return Request(
        subject,
        tuple(one.value if isinstance(one.value, str) else str(one) for one in more),
        tuple(part.rfc4514_string() for part in others),
    )


def check_request(pem: bytes) -> None:
    """Whether there may be a certificate for that: one block, not too long, and a strong key. Raises BadPem."""
    if len(pem) > LONGEST_REQUEST:
        raise BadPem(f"the certificate request has {len(pem)} bytes; at most {LONGEST_REQUEST} are accepted")
    count = pem.count(b"-----BEGIN ")
    if count != 1:
        raise BadPem(f"this is {count} blocks of PEM; one, a certificate request, is accepted")
    read_request(pem)
    key = x509.load_pem_x509_csr(pem).public_key()
    if isinstance(key, rsa.RSAPublicKey):
        good, found = key.key_size >= LEAST_RSA, f"an RSA key of {key.key_size} bits"
    elif isinstance(key, ec.EllipticCurvePublicKey):
        good, found = key.key_size >= LEAST_EC, f"a key of {key.key_size} bits on {key.curve.name}"
    else:
        good, found = isinstance(key, ed25519.Ed25519PublicKey), f"a {type(key).__name__}"
    if not good:
        accepted = f"RSA of at least {LEAST_RSA} bits, elliptic curves of at least {LEAST_EC}, and Ed25519 are accepted"
        raise BadPem(f"the certificate request is of {found}; {accepted}")


def fingerprint(key: bytes, *more: str) -> str:
    """A name for a key and what goes with it; nobody learns the key by it. Raises BadPem."""
    public = _public(_private(key).public_key())
    return hashlib.sha256(b"\0".join((public, *(text.encode() for text in more)))).hexdigest()


def matches_certificate(key: bytes, certificate: bytes) -> bool:
    """Whether a certificate is for that key. Raises BadPem."""
    return _public(_private(key).public_key()) == _public(_first(certificate).public_key())


def read(certificate: bytes) -> Certificate:
    """The first certificate of a chain. Raises BadPem."""
    found = _first(certificate)
    return Certificate(
        _subject(found.subject, found.extensions),
        found.not_valid_before_utc,
        found.not_valid_after_utc,
        found.fingerprint(hashes.SHA256()).hex(),
    )


def self_signed(key: bytes, subject: Subject, now: datetime.datetime) -> bytes:
    """A server's certificate that nobody vouches for. Raises BadPem."""
    private = _private(key)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(subject))
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + SELF_SIGNED_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(_places(subject), critical=False)
        .sign(private, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )


def _name(subject: Subject) -> x509.Name:
    groups = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in subject.groups]
    return x509.Name([*groups, x509.NameAttribute(NameOID.COMMON_NAME, subject.user)])


def _subject(name: x509.Name, extensions: x509.Extensions) -> Subject:
    common = [str(row.value) for row in name.get_attributes_for_oid(NameOID.COMMON_NAME)]
    groups = (str(row.value) for row in name.get_attributes_for_oid(NameOID.ORGANIZATION_NAME))
    places = _named_places(extensions)
    return Subject(
        common[0] if len(common) == 1 else "",
        tuple(groups),
        tuple(places.get_values_for_type(x509.DNSName)),
        tuple(str(one) for one in places.get_values_for_type(x509.IPAddress)),
    )


def _named_places(extensions: x509.Extensions) -> x509.SubjectAlternativeName:
    try:
        return extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return x509.SubjectAlternativeName([])


def _places(subject: Subject) -> x509.SubjectAlternativeName:
    names: Iterable[x509.GeneralName] = (x509.DNSName(name) for name in subject.names)
    addresses = (x509.IPAddress(ipaddress.ip_address(one)) for one in subject.addresses)
    return x509.SubjectAlternativeName([*names, *addresses])


def _private(pem: bytes) -> CertificateIssuerPrivateKeyTypes:
    try:
        key = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError) as error:
        raise BadPem(f"this is no private key: {error}") from None
    return key  # type: ignore[return-value]


def _first(pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificates(pem)[0]
    except ValueError as error:
        raise BadPem(f"this is no certificate: {error}") from None


def _public(key: object) -> bytes:
    return key.public_bytes(  # type: ignore[attr-defined, no-any-return]
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
