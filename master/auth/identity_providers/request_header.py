"""The provider RequestHeader: a proxy authenticates people and names them in headers. Driver.

Everybody can send headers, so the proxy shows a client certificate that an authority of `clientCA` issued directly. It
is compared here, not by the listener: the listener also accepts certificates of the cluster's own authority, and the
authenticator of API requests must not accept those of `clientCA`.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from multidict import MultiMapping

from master.auth.identity_providers.provider import ProviderError, ProviderIdentity, reported_identity


def is_issued_directly(
    certificate: x509.Certificate, authorities: Sequence[x509.Certificate], now: datetime.datetime
) -> bool:
    """Return whether one of the authorities issued a client certificate, and both are valid at the time."""
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        return False
    try:
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        if not {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE} & set(usage):
            return False
    except x509.ExtensionNotFound:
        pass
    except ValueError:
        return False
    for authority in authorities:
        if authority.not_valid_before_utc <= now <= authority.not_valid_after_utc:
            try:
                certificate.verify_directly_issued_by(authority)
            except (InvalidSignature, TypeError, ValueError):
                continue
            return True
    return False


@dataclass(frozen=True, slots=True)
class HeaderNames:
    """The headers of each part of an identity. The first that is not empty counts."""

    user: tuple[str, ...]
    preferred_username: tuple[str, ...] = ()
    name: tuple[str, ...] = ()
    email: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestHeaderProvider:
    """Trusts the headers of a proxy with a certificate of `authorities`.

    Its common name must be one of `common_names`, unless there are none.
    """

    name: str
    login_url: str
    challenge_url: str
    authorities: tuple[x509.Certificate, ...]
    common_names: frozenset[str]
    headers: HeaderNames
    clock: Callable[[], datetime.datetime]

    def authenticate_headers(self, headers: MultiMapping[str], certificate: bytes | None) -> ProviderIdentity | None:
        """Return the identity; None without a header of the user or without a certificate. Raises ProviderError."""
        if certificate is None or not (user := _first(headers, self.headers.user)):
            return None
        self._check(certificate)
        return reported_identity(
            self.name,
            user,
            name=_first(headers, self.headers.name),
            email=_first(headers, self.headers.email),
            preferred_username=_first(headers, self.headers.preferred_username),
        )

    def _check(self, der: bytes) -> None:
        try:
            certificate = x509.load_der_x509_certificate(der)
            common_names = [str(name.value) for name in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        except ValueError as error:
            raise ProviderError(f"{self.name}: the client certificate is not readable: {error}") from None
        if not is_issued_directly(certificate, self.authorities, self.clock()):
            raise ProviderError(f"{self.name}: no authority of clientCA issued the client certificate for now")
        if self.common_names and not (len(common_names) == 1 and common_names[0] in self.common_names):
            raise ProviderError(f"{self.name}: found a certificate of {common_names!r:.200}, which is not listed")


def _first(headers: MultiMapping[str], names: Sequence[str]) -> str:
    """Return the first value that is not empty. Raises ProviderError if one of these headers has several values."""
    for name in names:
        values = headers.getall(name, [])
        if len(values) > 1:
            raise ProviderError(f"found {len(values)} headers {name}; one is accepted")
        if values and values[0].strip():
            return values[0].strip()
    return ""
