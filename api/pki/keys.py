"""Private keys, certificate requests and certificates: PEM bytes in and out. Needs the large `cryptography` library.

The library takes 8 MB of memory. Daemons that must stay small import only the values in `api/pki/pem.py`.
"""

from __future__ import annotations

import datetime
import hashlib
import ipaddress

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from api.core.cluster_info import HASH_PREFIX
from api.pki.pem import BadPem, Certificate, CertificateRequest, Subject

SELF_SIGNED_LIFETIME = datetime.timedelta(days=365)

AUTHORITY_LIFETIME = datetime.timedelta(days=3650)
AUTHORITY_CLOCK_SKEW = datetime.timedelta(hours=1)
"""Authorities are valid from this time before they are created, for hosts whose clocks are behind."""

MAX_REQUEST_BYTES = 64 << 10
"""Limit of a certificate request as PEM."""

MIN_RSA_BITS = 2048
MIN_EC_BITS = 256
"""Minimum key sizes in certificate requests."""


def generate_key() -> bytes:
    """Generate a private key (EC P-256, PKCS 8, not encrypted)."""
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def create_request(key: bytes, subject: Subject) -> bytes:
    """Create a certificate request (PKCS 10), signed by the key. Raises BadPem."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(_x509_name(subject))
    if subject.dns_names or subject.ip_addresses:
        builder = builder.add_extension(_alternative_names(subject), critical=False)
    return builder.sign(_load_key(key), hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def parse_request(pem: bytes) -> CertificateRequest:
    """Return the content of a certificate request, after a check of its signature. Raises BadPem."""
    try:
        request = x509.load_pem_x509_csr(pem)
        if not request.is_signature_valid:
            raise BadPem("the certificate request is not signed by its own key")
        subject = _subject(request.subject, request.extensions)
        alternative_names = _find_alternative_names(request.extensions)
    except (ValueError, InvalidSignature, UnsupportedAlgorithm, x509.DuplicateExtension) as error:
        raise BadPem(f"not a PEM certificate request: {error}") from None
    other_names = [name for name in alternative_names if not isinstance(name, x509.DNSName | x509.IPAddress)]
    expected = {NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME}
    other_attributes = [
        rdn for rdn in request.subject.rdns if len(rdn) > 1 or any(attribute.oid not in expected for attribute in rdn)
    ]
    return CertificateRequest(
        subject,
        tuple(name.value if isinstance(name.value, str) else str(name) for name in other_names),
        tuple(rdn.rfc4514_string() for rdn in other_attributes),
    )


def check_request(pem: bytes) -> None:
    """Check that a certificate request is one PEM block, not too long, and has a strong key. Raises BadPem."""
    if len(pem) > MAX_REQUEST_BYTES:
        raise BadPem(f"the certificate request has {len(pem)} bytes; at most {MAX_REQUEST_BYTES} are accepted")
    blocks = pem.count(b"-----BEGIN ")
    if blocks != 1:
        raise BadPem(f"found {blocks} blocks of PEM; one, a certificate request, is accepted")
    parse_request(pem)
    key = x509.load_pem_x509_csr(pem).public_key()
    if isinstance(key, rsa.RSAPublicKey):
        is_accepted = key.key_size >= MIN_RSA_BITS
        description = f"an RSA key of {key.key_size} bits"
    elif isinstance(key, ec.EllipticCurvePublicKey):
        is_accepted = key.key_size >= MIN_EC_BITS
        description = f"a key of {key.key_size} bits on {key.curve.name}"
    else:
        is_accepted = isinstance(key, ed25519.Ed25519PublicKey)
        description = f"a {type(key).__name__}"
    if not is_accepted:
        accepted = (
            f"RSA of at least {MIN_RSA_BITS} bits, elliptic curves of at least {MIN_EC_BITS}, and Ed25519 are accepted"
        )
        raise BadPem(f"the certificate request is of {description}; {accepted}")


def key_fingerprint(key: bytes, *more: str) -> str:
    """Return the SHA-256 of a public key and further texts in hex. It does not reveal the key. Raises BadPem."""
    public_key = _public_bytes(_load_key(key).public_key())
    return hashlib.sha256(b"\0".join((public_key, *(text.encode() for text in more)))).hexdigest()


def matches_certificate(key: bytes, certificate: bytes) -> bool:
    """Return whether a certificate belongs to a key. Raises BadPem."""
    return _public_bytes(_load_key(key).public_key()) == _public_bytes(_load_first(certificate).public_key())


def parse_certificate(pem: bytes) -> Certificate:
    """Return the content of the first certificate of a chain. Raises BadPem."""
    certificate = _load_first(pem)
    return Certificate(
        _subject(certificate.subject, certificate.extensions),
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
        certificate.fingerprint(hashes.SHA256()).hex(),
        _issuer_id(certificate.extensions),
    )


def certificates_by_key_hash(pem: bytes) -> dict[str, bytes]:
    """Return the certificates of a bundle, each as PEM by the hash of its public key (`sha256:HEX`). Raises BadPem.

    The hash is that of the SubjectPublicKeyInfo, as `kubeadm join --discovery-token-ca-cert-hash` has it.
    """
    by_hash = {}
    try:
        for certificate in x509.load_pem_x509_certificates(pem):
            key_hash = hashlib.sha256(_public_bytes(certificate.public_key())).hexdigest()
            by_hash[f"{HASH_PREFIX}{key_hash}"] = certificate.public_bytes(serialization.Encoding.PEM)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BadPem(f"not certificates: {error}") from None
    return by_hash


def self_signed(key: bytes, subject: Subject, now: datetime.datetime) -> bytes:
    """Create a self-signed server certificate, valid for SELF_SIGNED_LIFETIME. Raises BadPem."""
    private_key = _load_key(key)
    return (
        x509.CertificateBuilder()
        .subject_name(_x509_name(subject))
        .issuer_name(_x509_name(subject))
        .public_key(private_key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + SELF_SIGNED_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(_alternative_names(subject), critical=False)
        .sign(private_key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )


def create_authority(now: datetime.datetime, name_prefix: str = "podlane-ca") -> tuple[bytes, bytes]:
    """Create a certificate authority, valid for AUTHORITY_LIFETIME. Returns its key and certificate as PEM.

    Its common name is the prefix and the time.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name_prefix}-{now:%Y%m%d%H%M%S}")])
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - AUTHORITY_CLOCK_SKEW)
        .not_valid_after(now + AUTHORITY_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    key_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return key_pem, certificate.public_bytes(serialization.Encoding.PEM)


def authority_ids(pem: bytes) -> tuple[str, ...]:
    """Return the subject key identifiers of the authorities of a bundle, in hex. Raises BadPem."""
    try:
        return tuple(
            certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest.hex()
            for certificate in x509.load_pem_x509_certificates(pem)
        )
    except (ValueError, x509.ExtensionNotFound, x509.DuplicateExtension) as error:
        raise BadPem(f"not certificates of authorities: {error}") from None


def _issuer_id(extensions: x509.Extensions) -> str:
    try:
        digest = extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier
    except x509.ExtensionNotFound:
        return ""
    return (digest or b"").hex()


def _x509_name(subject: Subject) -> x509.Name:
    groups = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in subject.groups]
    return x509.Name([*groups, x509.NameAttribute(NameOID.COMMON_NAME, subject.user)])


def _subject(name: x509.Name, extensions: x509.Extensions) -> Subject:
    """Return the subject. `user` is empty unless there is exactly one common name."""
    common_names = [str(attribute.value) for attribute in name.get_attributes_for_oid(NameOID.COMMON_NAME)]
    groups = [str(attribute.value) for attribute in name.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
    alternative_names = _find_alternative_names(extensions)
    return Subject(
        common_names[0] if len(common_names) == 1 else "",
        tuple(groups),
        tuple(alternative_names.get_values_for_type(x509.DNSName)),
        tuple(str(address) for address in alternative_names.get_values_for_type(x509.IPAddress)),
    )


def _find_alternative_names(extensions: x509.Extensions) -> x509.SubjectAlternativeName:
    try:
        return extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return x509.SubjectAlternativeName([])


def _alternative_names(subject: Subject) -> x509.SubjectAlternativeName:
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in subject.dns_names]
    names += [x509.IPAddress(ipaddress.ip_address(address)) for address in subject.ip_addresses]
    return x509.SubjectAlternativeName(names)


def _load_key(pem: bytes) -> CertificateIssuerPrivateKeyTypes:
    try:
        key = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError) as error:
        raise BadPem(f"not a private key: {error}") from None
    return key  # type: ignore[return-value]


def _load_first(pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificates(pem)[0]
    except ValueError as error:
        raise BadPem(f"not a certificate: {error}") from None


def _public_bytes(key: object) -> bytes:
    return key.public_bytes(  # type: ignore[attr-defined, no-any-return]
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
