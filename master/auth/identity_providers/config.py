"""The setting identityProviders: its forms, and the identity providers that it describes.

Source: `oauthConfig.identityProviders` of the master configuration of OpenShift 3. `urls` of OpenID may be replaced by
`issuer`, as in OpenShift 4.
"""

from __future__ import annotations

import datetime
import itertools
import logging
import re
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from cryptography import x509

from master.auth.identity_providers.allow_deny_all import AllowAllProvider, DenyAllProvider
from master.auth.identity_providers.basic_auth import BasicAuthProvider
from master.auth.identity_providers.htpasswd import HTPasswdProvider
from master.auth.identity_providers.keystone import KeystoneProvider
from master.auth.identity_providers.ldap import AttributeNames, Directory, LDAPProvider
from master.auth.identity_providers.ldap_protocol import is_attribute, parse_url
from master.auth.identity_providers.openid import (
    REQUEST_PARAMETERS,
    ClaimNames,
    Endpoints,
    OpenIDClient,
    OpenIDProvider,
    is_https_url,
)
from master.auth.identity_providers.provider import (
    HeaderProvider,
    IdentityProvider,
    MappingMethod,
    PasswordProvider,
    RedirectProvider,
)
from master.auth.identity_providers.remote import RemoteClient
from master.auth.identity_providers.request_header import HeaderNames, RequestHeaderProvider
from reconcile import config_schema
from reconcile.config_document import unreadable_file
from reconcile.config_schema import MAX_PROBLEMS, problem

log = logging.getLogger(__name__)

P = TypeVar("P", bound=msgspec.Struct)

Authenticator = PasswordProvider | HeaderProvider | RedirectProvider


class InvalidIdentityProviders(ValueError):
    """Identity providers that cannot be used. The text has one line for each problem."""


class IdentityProviderConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One entry of identityProviders."""

    name: str
    challenge: bool = False
    login: bool = False
    mapping_method: MappingMethod = "claim"
    provider: dict[str, Any]


class NoFieldsConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """AllowAllPasswordIdentityProvider and DenyAllPasswordIdentityProvider."""


class HTPasswdConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """HTPasswdPasswordIdentityProvider."""

    file: str


Secret = Annotated[str | dict[str, str], msgspec.Meta(extra={"secret": True, "accepted": "a text or {file: PATH}"})]
"""A text, or `{file: PATH}`: the file that has it. A line feed at its end is not part of it."""


class _TLSConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The part of the form of a remote server: its authorities, and the master's client certificate."""

    url: str
    ca: str = ""
    cert_file: str = ""
    key_file: str = ""


class BasicAuthConfig(_TLSConfig, frozen=True, kw_only=True, rename="camel"):
    """BasicAuthPasswordIdentityProvider."""


class KeystoneConfig(_TLSConfig, frozen=True, kw_only=True, rename="camel"):
    """KeystonePasswordIdentityProvider."""

    domain_name: str
    use_keystone_identity: bool = False


class LDAPConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """LDAPPasswordIdentityProvider."""

    url: str
    bind_dn: str = msgspec.field(default="", name="bindDN")
    bind_password: Secret = ""
    insecure: bool = False
    ca: str = ""
    attributes: dict[str, Any]


class RequestHeaderConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """RequestHeaderIdentityProvider."""

    login_url: str = msgspec.field(default="", name="loginURL")
    challenge_url: str = msgspec.field(default="", name="challengeURL")
    client_ca: str = msgspec.field(name="clientCA")
    client_common_names: tuple[str, ...] = ()
    headers: tuple[str, ...]
    preferred_username_headers: tuple[str, ...] = ()
    name_headers: tuple[str, ...] = ()
    email_headers: tuple[str, ...] = ()


class OpenIDURLsConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The endpoints of an OpenID provider."""

    authorize: str
    token: str
    user_info: str = ""


class OpenIDConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """OpenIDIdentityProvider. It has `issuer` or `urls`."""

    client_id: str = msgspec.field(name="clientID")
    client_secret: Secret
    ca: str = ""
    extra_scopes: tuple[str, ...] = ()
    extra_authorize_parameters: dict[str, str] = {}
    issuer: str = ""
    urls: dict[str, Any] | None = None
    claims: dict[str, Any] = {}


@dataclass(slots=True)
class _Reader:
    """Reads forms and files, and collects the problems by path."""

    directory: Path
    problems: list[str] = field(default_factory=list)

    def add(self, path: str, text: str) -> None:
        """Add a problem to those found."""
        self.problems.append(f"{path}: {text}")

    def reject(self, path: str, value: object, accepted: str) -> None:
        """Add the problem of a value: what was found, and what is accepted."""
        self.problems.append(problem(path, value, accepted))

    def file(self, path: str, name: str) -> Path | None:
        """Return the path of a file that can be read; None after adding the problem."""
        file = self.directory / name
        unreadable = tuple(unreadable_file(path, file))
        self.problems += unreadable
        return None if unreadable else file

    def secret(self, path: str, value: Secret) -> str:
        """Return a secret; an empty text after adding the problem."""
        if isinstance(value, str):
            return value
        if set(value) != {"file"}:
            # The keys are not shown: a password that begins with a brace is a mapping, too.
            self.reject(path, value, "a text or {file: PATH} is accepted")
        elif (file := self.file(f"{path}.file", value["file"])) is not None:
            with self.file_errors(f"{path}.file", "a text is accepted in UTF-8"):
                if secret := file.read_text().rstrip("\r\n"):
                    return secret
                self.add(f"{path}.file", f"found the empty file {str(file)!r}; a file with one line is accepted")
        return ""

    def tls(self, path: str, ca: str, certificate: str = "", key: str = "") -> ssl.SSLContext:
        """Return the context of a client that verifies its server. Without `ca` it trusts the system's authorities."""
        files = {"ca": ca, "certFile": certificate, "keyFile": key}
        found = {name: self.file(f"{path}.{name}", file) for name, file in files.items() if file}
        context = ssl.create_default_context() if not ca else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if authorities := found.get("ca"):
            with self.file_errors(f"{path}.ca", "CA certificates are accepted as PEM"):
                context.load_verify_locations(authorities)
        if bool(certificate) != bool(key):
            self.add(path, "found one of certFile and keyFile; both or neither are accepted")
        elif (certificate_file := found.get("certFile")) and (key_file := found.get("keyFile")):
            with self.file_errors(f"{path}.certFile", _KEY_PAIR):
                context.load_cert_chain(certificate_file, key_file, password="")
        return context

    def https_url(self, path: str, url: str) -> None:
        """Add a problem if a URL is not https."""
        if not is_https_url(url):
            self.reject(path, url, "an https URL is accepted, without credentials and fragment")

    @contextmanager
    def file_errors(self, path: str, accepted: str) -> Iterator[None]:
        """Add the errors of reading a file."""
        try:
            yield
        except (OSError, ValueError) as error:
            # Only the reason: the text of an error may quote the file.
            reason = error.reason if isinstance(error, ssl.SSLError) else getattr(error, "strerror", None)
            self.add(path, f"found a file that cannot be used ({reason or 'it has another form'}); {accepted}")

    def convert(self, path: str, document: object, kind: type[P]) -> P | None:
        """Return a document as a form; None after adding the problems of each field."""
        mismatches = tuple(itertools.islice(config_schema.mismatches(kind, document, path), MAX_PROBLEMS))
        self.problems += mismatches
        return None if mismatches else msgspec.convert(document, kind)


def _allow_all(name: str, _config: NoFieldsConfig, _path: str, _reader: _Reader) -> Authenticator:
    return AllowAllProvider(name)


def _deny_all(name: str, _config: NoFieldsConfig, _path: str, _reader: _Reader) -> Authenticator:
    return DenyAllProvider(name)


def _htpasswd(name: str, config: HTPasswdConfig, path: str, reader: _Reader) -> Authenticator | None:
    file = reader.file(f"{path}.file", config.file)
    return None if file is None else HTPasswdProvider(name, file)


def _basic_auth(name: str, config: BasicAuthConfig, path: str, reader: _Reader) -> Authenticator:
    reader.https_url(f"{path}.url", config.url)
    tls = reader.tls(path, config.ca, config.cert_file, config.key_file)
    return BasicAuthProvider(name, config.url, RemoteClient(tls))


def _keystone(name: str, config: KeystoneConfig, path: str, reader: _Reader) -> Authenticator:
    reader.https_url(f"{path}.url", config.url)
    if not config.domain_name:
        reader.reject(f"{path}.domainName", "", "the name of a domain is accepted, such as Default")
    client = RemoteClient(reader.tls(path, config.ca, config.cert_file, config.key_file))
    return KeystoneProvider(
        name, config.url, config.domain_name, client, use_keystone_identity=config.use_keystone_identity
    )


def _ldap(name: str, config: LDAPConfig, path: str, reader: _Reader) -> Authenticator | None:
    names = reader.convert(f"{path}.attributes", config.attributes, AttributeNames)
    bind_password = reader.secret(f"{path}.bindPassword", config.bind_password)
    if bool(config.bind_dn) != bool(config.bind_password):
        reader.add(path, "found one of bindDN and bindPassword; both or neither are accepted")
    if config.insecure and (config.ca or config.url.startswith("ldaps:")):
        reader.reject(f"{path}.insecure", True, "false is accepted with ca and with an ldaps URL, which are for TLS")
    tls = None if config.insecure else reader.tls(path, config.ca)
    try:
        url = parse_url(config.url)
    except ValueError as error:
        reader.reject(f"{path}.url", config.url, str(error))
        return None
    if names is None:
        return None
    if not names.id:
        reader.add(f"{path}.attributes.id", "found an empty list; at least one attribute is accepted, such as dn")
    for attribute in names.requested():
        if not is_attribute(attribute):
            reader.reject(f"{path}.attributes", attribute, "names of attributes are accepted, such as uid")
    return LDAPProvider(name, Directory(url, tls, config.bind_dn, bind_password), names)


def _request_header(name: str, config: RequestHeaderConfig, path: str, reader: _Reader) -> Authenticator:
    for field_name, url in (("loginURL", config.login_url), ("challengeURL", config.challenge_url)):
        if url and (not _PLACEHOLDER.search(url) or not is_https_url(_PLACEHOLDER.sub("x", url))):
            reader.reject(f"{path}.{field_name}", url, "an https URL with ${url} or ${query} is accepted")
    if not any(config.headers):
        reader.add(f"{path}.headers", "found an empty list; at least one header is accepted, such as X-Remote-User")
    authorities: tuple[x509.Certificate, ...] = ()
    if (file := reader.file(f"{path}.clientCA", config.client_ca)) is not None:
        with reader.file_errors(f"{path}.clientCA", "CA certificates are accepted as PEM"):
            authorities = tuple(x509.load_pem_x509_certificates(file.read_bytes()))
    names = HeaderNames(config.headers, config.preferred_username_headers, config.name_headers, config.email_headers)
    common_names = frozenset(config.client_common_names)
    return RequestHeaderProvider(
        name, config.login_url, config.challenge_url, authorities, common_names, names, _utc_now
    )


def _utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _openid(name: str, config: OpenIDConfig, path: str, reader: _Reader) -> Authenticator | None:
    claims = reader.convert(f"{path}.claims", config.claims, ClaimNames)
    urls = None
    if (config.urls is None) == (not config.issuer):
        reader.add(path, "found both or none of issuer and urls; one of them is accepted")
    elif config.urls is None:
        reader.https_url(f"{path}.issuer", config.issuer)
    elif (urls := reader.convert(f"{path}.urls", config.urls, OpenIDURLsConfig)) is not None:
        for field_name, url in (("authorize", urls.authorize), ("token", urls.token), ("userInfo", urls.user_info)):
            if url or field_name != "userInfo":
                reader.https_url(f"{path}.urls.{field_name}", url)
    secret = reader.secret(f"{path}.clientSecret", config.client_secret)
    for field_name, value in (("clientID", config.client_id), ("clientSecret", config.client_secret)):
        if not value:
            reader.reject(f"{path}.{field_name}", "", "the value from the registration at the provider is accepted")
    for parameter in sorted(REQUEST_PARAMETERS & config.extra_authorize_parameters.keys()):
        accepted = f"parameters except {', '.join(sorted(REQUEST_PARAMETERS))} are accepted"
        reader.add(f"{path}.extraAuthorizeParameters", f"found {parameter}, which the master sets; {accepted}")
    tls = reader.tls(path, config.ca)
    if claims is None:
        return None
    client = OpenIDClient(config.client_id, secret, config.extra_scopes, config.extra_authorize_parameters, claims)
    server = config.issuer if urls is None else Endpoints("", urls.authorize, urls.token, urls.user_info)
    return OpenIDProvider(name, client, server, RemoteClient(tls))


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of provider: its form, and how it is built. A builder returns None after adding problems."""

    form: type[msgspec.Struct]
    build: Callable[[str, Any, str, _Reader], Authenticator | None]


KINDS = {
    "AllowAllPasswordIdentityProvider": _Kind(NoFieldsConfig, _allow_all),
    "DenyAllPasswordIdentityProvider": _Kind(NoFieldsConfig, _deny_all),
    "HTPasswdPasswordIdentityProvider": _Kind(HTPasswdConfig, _htpasswd),
    "BasicAuthPasswordIdentityProvider": _Kind(BasicAuthConfig, _basic_auth),
    "LDAPPasswordIdentityProvider": _Kind(LDAPConfig, _ldap),
    "KeystonePasswordIdentityProvider": _Kind(KeystoneConfig, _keystone),
    "RequestHeaderIdentityProvider": _Kind(RequestHeaderConfig, _request_header),
    "OpenIDIdentityProvider": _Kind(OpenIDConfig, _openid),
}
"""The kinds of providers."""

_NAME = re.compile(r"(?!\.{1,2}\Z)[^:/%\s\x00-\x1f\x7f]{1,253}")
_PLACEHOLDER = re.compile(r"\$\{(?:url|server-relative-url|query)\}")
_KEY_PAIR = "a certificate is accepted as PEM, and in keyFile its key without a password"
_TYPE_META = frozenset(("apiVersion", "kind"))


def load_identity_providers(documents: Sequence[object], directory: Path) -> tuple[IdentityProvider, ...]:
    """Return the identity providers as `read_identity_providers`, and warn of those that are not safe."""
    providers = read_identity_providers(documents, directory)
    for provider in providers:
        if isinstance(provider.authenticator, AllowAllProvider):
            text = "identity provider accepts every password: everybody can be anybody"
            log.warning(text, extra={"provider": provider.name})
        if isinstance(provider.authenticator, LDAPProvider) and not provider.authenticator.uses_tls:
            log.warning("identity provider sends passwords without TLS", extra={"provider": provider.name})
    return providers


def read_identity_providers(documents: Sequence[object], directory: Path) -> tuple[IdentityProvider, ...]:
    """Return the identity providers of the setting, in their order. Raises InvalidIdentityProviders.

    Files are relative to the directory. Passwords and keys are read now, the file of HTPasswd when it changes.
    """
    reader = _Reader(directory)
    providers: dict[str, IdentityProvider] = {}
    names: set[str] = set()
    for number, document in enumerate(documents):
        path = f"identityProviders[{number}]"
        config = reader.convert(path, document, IdentityProviderConfig)
        if config is None:
            continue
        if not _NAME.fullmatch(config.name):
            accepted = "1 to 253 characters except ':', '/', '%' and spaces are accepted, and neither '.' nor '..'"
            reader.reject(f"{path}.name", config.name, accepted)
        elif config.name in names:
            reader.reject(f"{path}.name", config.name, "a name that no other provider has is accepted")
        names.add(config.name)
        if (authenticator := _authenticator(config, f"{path}.provider", reader)) is not None:
            providers[path] = IdentityProvider(
                config.name, config.challenge, config.login, config.mapping_method, authenticator
            )
    _check_challengers(providers, reader)
    if reader.problems:
        raise InvalidIdentityProviders("\n".join(reader.problems))
    return tuple(providers.values())


def _authenticator(config: IdentityProviderConfig, path: str, reader: _Reader) -> Authenticator | None:
    api_version, kind_name = config.provider.get("apiVersion"), config.provider.get("kind")
    if api_version != "v1":
        reader.reject(f"{path}.apiVersion", api_version, "v1 is accepted")
    kind = KINDS.get(kind_name) if isinstance(kind_name, str) else None
    if kind is None:
        reader.reject(f"{path}.kind", kind_name, f"{', '.join(KINDS)} are accepted")
        return None
    fields = {key: value for key, value in config.provider.items() if key not in _TYPE_META}
    form = reader.convert(path, fields, kind.form)
    return None if form is None else kind.build(config.name, form, path, reader)


def _check_challengers(providers: Mapping[str, IdentityProvider], reader: _Reader) -> None:
    """Add the problems of providers that cannot be used in one of the ways in which they are to be used."""
    challengers = [path for path, provider in providers.items() if provider.is_challenge]
    for path, provider in providers.items():
        authenticator = provider.authenticator
        if isinstance(authenticator, OpenIDProvider) and provider.is_challenge:
            reader.reject(f"{path}.challenge", True, "false is accepted, because OpenID needs a browser")
        if isinstance(authenticator, RequestHeaderProvider):
            accepted = "an https URL with ${url} or ${query} is accepted"
            if provider.is_challenge and not authenticator.challenge_url:
                reader.add(f"{path}.provider.challengeURL", f"is missing, with challenge; {accepted}")
            if provider.is_login and not authenticator.login_url:
                reader.add(f"{path}.provider.loginURL", f"is missing, with login; {accepted}")
            if provider.is_challenge and len(challengers) > 1:
                others = ", ".join(other for other in challengers if other != path)
                accepted = f"false is accepted with a challenge of {others}, because a redirect must be the only one"
                reader.reject(f"{path}.challenge", True, accepted)
