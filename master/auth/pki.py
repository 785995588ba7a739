"""The cluster's certificate authority, the server certificate and the administrator's kubeconfig. Driver.

`stateDir/pki/ca.key` and `ca.crt` are the certificate authority, created at the first start. The server certificate is
issued at every start, so that it has the configured addresses; clients verify it with the authority. All keys created
here are EC P-256. The administrator's certificate is valid as long as the authority's; nodes renew theirs.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import functools
import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from api.core.certificates import CLIENT_AUTH, DIGITAL_SIGNATURE, KEY_ENCIPHERMENT, SERVER_AUTH
from api.pki import keys
from api.pki.authority_files import CERTIFICATE, KEY, NEXT_CERTIFICATE, PREVIOUS_CERTIFICATE
from master.auth.attributes import FRONT_PROXY_USER, SYSTEM_MASTERS
from master.auth.certificate_lifetimes import CLOCK_SKEW, MIN_BACKDATED_LIFETIME
from reconcile import atomic_file
from reconcile.errors import NotReady, Refused

LIFETIME = datetime.timedelta(days=3650)

OTHER_AUTHORITIES = (NEXT_CERTIFICATE, PREVIOUS_CERTIFICATE)
TRUSTED = "trusted.crt"
"""The certificates of all authorities that are trusted."""

CA_FIELD = "certificate-authority-data"

EXTENDED = {CLIENT_AUTH: ExtendedKeyUsageOID.CLIENT_AUTH, SERVER_AUTH: ExtendedKeyUsageOID.SERVER_AUTH}


@dataclass(frozen=True, slots=True)
class Authority:
    """The cluster's certificate authority: its key and certificate.

    `others` are further authorities that are trusted while the cluster changes from one to another.
    """

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    others: tuple[x509.Certificate, ...] = ()

    @property
    def pem(self) -> bytes:
        """Return the certificate as PEM."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def trusted(self) -> tuple[x509.Certificate, ...]:
        """Return the certificates of all authorities, the one that signs first."""
        return (self.certificate, *self.others)

    @property
    def trusted_pem(self) -> bytes:
        """Return the certificates of all authorities as PEM, the one that signs first."""
        return b"".join(each.public_bytes(serialization.Encoding.PEM) for each in self.trusted)


@functools.lru_cache(maxsize=1024)
def is_issued_by(der: bytes, issuer: x509.Certificate) -> bool:
    """Return whether a verified certificate of a connection, as DER, was issued by this authority directly."""
    try:
        x509.load_der_x509_certificate(der).verify_directly_issued_by(issuer)
    except (InvalidSignature, TypeError, ValueError):
        return False
    return True


@dataclass(frozen=True, slots=True)
class Identity:
    """A private key and the certificate for it, both as PEM."""

    key: bytes
    certificate: bytes


def authority(directory: Path, now: datetime.datetime) -> Authority:
    """Return the certificate authority of this cluster. Creates it if there is none. Raises NotReady and Refused."""
    key_path, certificate_path = directory / KEY, directory / CERTIFICATE
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not certificate_path.exists():
            key, certificate = keys.create_authority(now)
            # The key is first, so that there is never a certificate without its key.
            atomic_file.write(key_path, key)
            atomic_file.write(certificate_path, certificate, 0o644)
        others = [path.read_bytes() for name in OTHER_AUTHORITIES if (path := directory / name).exists()]
        ca = _load_authority(key_path.read_bytes(), certificate_path.read_bytes(), directory, others)
        atomic_file.write(directory / TRUSTED, ca.trusted_pem, 0o644)
        return ca
    except OSError as error:
        raise NotReady(f"certificates in {directory}: {error}") from error


FRONT_PROXY_KEY, FRONT_PROXY_CERTIFICATE, FRONT_PROXY_CLIENT = (
    "front-proxy-ca.key",
    "front-proxy-ca.crt",
    "front-proxy-client.pem",
)
FRONT_PROXY_RENEWAL = datetime.timedelta(days=365)
"""The authority of front-proxy certificates is replaced at the first start that is so close to its end."""


@dataclass(frozen=True, slots=True)
class FrontProxy:
    """The identity of the master for aggregated API servers, which believe the user that it names in headers.

    `authority` is the certificate of an authority that signs nothing else, as PEM. `client` is the file with the
    certificate of the master and its key.
    """

    authority: str
    client: Path


def front_proxy(directory: Path, now: datetime.datetime) -> FrontProxy:
    """Return the identity of the master for aggregated API servers, with a new certificate. Raises NotReady.

    The authority is created if there is none that is usable. Aggregated API servers read it from a ConfigMap.
    """
    key_path, certificate_path = directory / FRONT_PROXY_KEY, directory / FRONT_PROXY_CERTIFICATE
    try:
        ca = _load_front_proxy(key_path, certificate_path, directory)
        if ca is None or ca.certificate.not_valid_after_utc - now < FRONT_PROXY_RENEWAL:
            key, certificate = keys.create_authority(now, "podlane-front-proxy-ca")
            atomic_file.write(key_path, key)
            atomic_file.write(certificate_path, certificate, 0o644)
            ca = _load_authority(key, certificate, directory, ())
        identity = client_identity(ca, FRONT_PROXY_USER, (), now)
        client = directory / FRONT_PROXY_CLIENT
        atomic_file.write(client, identity.key + identity.certificate)
    except OSError as error:
        raise NotReady(f"certificates in {directory}: {error}") from error
    return FrontProxy(ca.pem.decode(), client)


def _load_front_proxy(key: Path, certificate: Path, directory: Path) -> Authority | None:
    """Return the authority of these files; None if there is none, or if its creation was interrupted."""
    if not key.exists() or not certificate.exists():
        return None
    try:
        return _load_authority(key.read_bytes(), certificate.read_bytes(), directory, ())
    except Refused:
        return None


def server_certificate(ca: Authority, directory: Path, known_as: Iterable[str], now: datetime.datetime) -> Path:
    """Write a new server certificate and its key into one file, and return its path. Raises NotReady.

    It is for these names and addresses, and for those of this machine.
    """
    names = [*known_as, "127.0.0.1", "::1", "localhost", socket.gethostname()]
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "podlane-master")])
    san = x509.SubjectAlternativeName([_general_name(name) for name in dict.fromkeys(names) if name])
    certificate = _sign(ca, subject, key.public_key(), ExtendedKeyUsageOID.SERVER_AUTH, now, names=san)
    path = directory / "server.pem"
    try:
        atomic_file.write(path, private_pem(key) + certificate)
    except OSError as error:
        raise NotReady(f"certificate of the server {path}: {error}") from error
    return path


def certificate_ends(directory: Path) -> dict[str, datetime.datetime]:
    """Return when the certificates of the master's own files end, by file name; the first end of a file of several."""
    ends = {}
    for path in sorted((*directory.glob("*.crt"), *directory.glob("*.pem"))):
        with contextlib.suppress(OSError, ValueError):
            certificates = x509.load_pem_x509_certificates(path.read_bytes())
            ends[path.name] = min(certificate.not_valid_after_utc for certificate in certificates)
    return ends


def client_identity(ca: Authority, user: str, groups: Iterable[str], now: datetime.datetime) -> Identity:
    """Return a new key and client certificate for a user (CN) in groups (O)."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _sign(ca, _subject(user, groups), key.public_key(), ExtendedKeyUsageOID.CLIENT_AUTH, now)
    return Identity(key=private_pem(key), certificate=certificate)


def sign_request(ca: Authority, pem: bytes, usages: Iterable[str], seconds: float, now: datetime.datetime) -> bytes:
    """Return a certificate as PEM for the names and the key of the request, with these usages and this lifetime.

    The caller decides whether the request is granted.
    """
    request, requested = x509.load_pem_x509_csr(pem), frozenset(usages)
    lifetime = datetime.timedelta(seconds=seconds)
    builder = (
        x509.CertificateBuilder()
        .subject_name(request.subject)
        .issuer_name(ca.certificate.subject)
        .public_key(request.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW if lifetime >= MIN_BACKDATED_LIFETIME else now)
        .not_valid_after(min(now + lifetime, ca.certificate.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(requested), critical=True)
        .add_extension(x509.ExtendedKeyUsage([EXTENDED[usage] for usage in sorted(requested & EXTENDED.keys())]), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.key.public_key()), critical=False)
    )
    for extension in request.extensions:
        if isinstance(extension.value, x509.SubjectAlternativeName):
            builder = builder.add_extension(extension.value, critical=False)
    return builder.sign(ca.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _key_usage(usages: frozenset[str]) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=DIGITAL_SIGNATURE in usages,
        content_commitment=False,
        key_encipherment=KEY_ENCIPHERMENT in usages,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def admin_kubeconfig(ca: Authority, path: Path, server: str, now: datetime.datetime) -> bool:
    """Write the administrator's kubeconfig, mode 0600, unless the file there is already for this server and authority.

    Returns whether it was written.
    """
    try:
        if _serves(path, server, ca):
            return False
        admin = client_identity(ca, "system:admin", (SYSTEM_MASTERS,), now)
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_file.write(path, yaml.safe_dump(kubeconfig(server, ca, admin, "admin"), sort_keys=False).encode())
    except OSError as error:
        raise NotReady(f"kubeconfig {path}: {error}") from error
    return True


def kubeconfig(server: str, ca: Authority, identity: Identity, user: str) -> dict[str, object]:
    """Return a kubeconfig with embedded certificates and key."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "podlane", "cluster": {"server": server, "certificate-authority-data": _base64(ca.trusted_pem)}}
        ],
        "users": [
            {
                "name": user,
                "user": {
                    "client-certificate-data": _base64(identity.certificate),
                    "client-key-data": _base64(identity.key),
                },
            }
        ],
        "contexts": [{"name": "podlane", "context": {"cluster": "podlane", "user": user}}],
        "current-context": "podlane",
    }


def _serves(path: Path, server: str, ca: Authority) -> bool:
    if not path.exists():
        return False
    text = path.read_text(encoding="utf-8", errors="replace")
    return f"server: {server}\n" in text and f"{CA_FIELD}: {_base64(ca.trusted_pem)}\n" in text


def _load_authority(key_pem: bytes, certificate_pem: bytes, directory: Path, others: Iterable[bytes]) -> Authority:
    try:
        trusted = tuple(map(x509.load_pem_x509_certificate, others))
        key = serialization.load_pem_private_key(key_pem, password=None)
        certificate = x509.load_pem_x509_certificate(certificate_pem)
    except ValueError as error:
        raise Refused(f"certificates in {directory} cannot be read: {error}; they are not replaced") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        hint = "they are not replaced. If `podlane ca activate` was interrupted, run it again"
        raise Refused(f"{KEY} and {CERTIFICATE} in {directory} do not belong together; {hint}")
    return Authority(key, certificate, trusted)


def _sign(
    ca: Authority,
    subject: x509.Name,
    public_key: CertificatePublicKeyTypes,
    usage: x509.ObjectIdentifier,
    now: datetime.datetime,
    *,
    names: x509.SubjectAlternativeName | None = None,
) -> bytes:
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(ca.certificate.subject)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(min(now + LIFETIME, ca.certificate.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.key.public_key()), critical=False)
    )
    if names is not None:
        builder = builder.add_extension(names, critical=False)
    return builder.sign(ca.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _subject(user: str, groups: Iterable[str]) -> x509.Name:
    organizations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*organizations, x509.NameAttribute(NameOID.COMMON_NAME, user)])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return the key as unencrypted PEM (PKCS 8)."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
