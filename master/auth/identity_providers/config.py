"""The setting identityProviders: its forms, and the identity providers that it describes.

Source: `oauthConfig.identityProviders` of the master configuration of OpenShift 3. `urls` of OpenID may be replaced by
`issuer`, as in OpenShift 4.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from master.auth.identity_providers.allow_deny_all import AllowAllProvider, DenyAllProvider
from master.auth.identity_providers.htpasswd import HTPasswdProvider
from master.auth.identity_providers.provider import (
    HeaderProvider,
    IdentityProvider,
    MappingMethod,
    PasswordProvider,
    RedirectProvider,
)

log = logging.getLogger(__name__)

P = TypeVar("P", bound=msgspec.Struct)

Authenticator = PasswordProvider | HeaderProvider | RedirectProvider


class InvalidIdentityProviders(ValueError):
    """Identity providers that cannot be used. The text has one line for each problem."""


class _Config(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of the forms."""


class IdentityProviderConfig(_Config, frozen=True, kw_only=True, rename="camel"):
    """One entry of identityProviders."""

    name: str
    challenge: bool = False
    login: bool = False
    mapping_method: MappingMethod = "claim"
    provider: dict[str, Any]


class NoFieldsConfig(_Config, frozen=True, kw_only=True, rename="camel"):
    """AllowAllPasswordIdentityProvider and DenyAllPasswordIdentityProvider."""


class HTPasswdConfig(_Config, frozen=True, kw_only=True, rename="camel"):
    """HTPasswdPasswordIdentityProvider."""

    file: str


@dataclass(slots=True)
class _Reader:
    """Reads forms and files, and collects the problems by path."""

    directory: Path
    found: list[str] = field(default_factory=list)

    def add(self, path: str, text: str) -> None:
        """Add a problem to those found."""
        self.found.append(f"{path}: {text}")

    def file(self, path: str, name: str) -> Path | None:
        """Return the path of a file that can be read; None after adding the problem."""
        file = self.directory / name
        try:
            if not file.is_file():
                self.add(path, f"found {name!r}, which is no file; the path of a file is accepted")
                return None
            with file.open("rb"):
                return file
        except (OSError, ValueError) as error:
            self.add(path, f"found {name!r}: {error}; the path of a file that can be read is accepted")
            return None

    def convert(self, path: str, document: object, kind: type[P], ignored: frozenset[str] = frozenset()) -> P | None:
        """Return a document as a form, without its ignored keys; None after adding the problems of each field."""
        if not isinstance(document, Mapping):
            self.add(path, f"found {document!r:.80}; a mapping is accepted")
            return None
        before = len(self.found)
        fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
        for key in document:
            if key not in fields and key not in ignored:
                near = difflib.get_close_matches(str(key), fields, n=1)
                hint = f'did you mean "{near[0]}"?' if near else f"known fields are {', '.join(fields) or 'none'}"
                self.add(f"{path}.{key}", f"is not a field; {hint}")
        for key, declared in fields.items():
            if key in document:
                try:
                    msgspec.convert(document[key], declared.type)
                except msgspec.ValidationError as error:
                    self.add(f"{path}.{key}", str(error))
            elif declared.required:
                self.add(f"{path}.{key}", "is missing")
        if len(self.found) > before:
            return None
        return msgspec.convert({key: document[key] for key in document if key in fields}, kind)


def _allow_all(name: str, _config: NoFieldsConfig, _path: str, _reader: _Reader) -> Authenticator:
    log.warning("identity provider accepts every password: everybody can be anybody", extra={"provider": name})
    return AllowAllProvider(name)


def _deny_all(name: str, _config: NoFieldsConfig, _path: str, _reader: _Reader) -> Authenticator:
    return DenyAllProvider(name)


def _htpasswd(name: str, config: HTPasswdConfig, path: str, reader: _Reader) -> Authenticator | None:
    file = reader.file(f"{path}.file", config.file)
    return None if file is None else HTPasswdProvider(name, file)


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of provider: its form, and how it is built. A builder returns None after adding problems."""

    form: type[msgspec.Struct]
    build: Callable[[str, Any, str, _Reader], Authenticator | None]


KINDS = {
    "AllowAllPasswordIdentityProvider": _Kind(NoFieldsConfig, _allow_all),
    "DenyAllPasswordIdentityProvider": _Kind(NoFieldsConfig, _deny_all),
    "HTPasswdPasswordIdentityProvider": _Kind(HTPasswdConfig, _htpasswd),
}
"""The kinds of providers."""

_NAME = re.compile(r"(?!\.{1,2}\Z)[^:/%\s\x00-\x1f\x7f]{1,253}")
_TYPE_META = frozenset(("apiVersion", "kind"))


def load_identity_providers(documents: Sequence[object], directory: Path) -> tuple[IdentityProvider, ...]:
    """Return the identity providers of the setting, in their order. Raises InvalidIdentityProviders.

    Files are relative to the directory. Passwords and keys are read now, the file of HTPasswd when it changes.
    """
    reader = _Reader(directory)
    providers: list[IdentityProvider] = []
    names: set[str] = set()
    for number, document in enumerate(documents):
        path = f"identityProviders[{number}]"
        config = reader.convert(path, document, IdentityProviderConfig)
        if config is None:
            continue
        if not _NAME.fullmatch(config.name):
            reader.add(f"{path}.name", f"found {config.name!r:.80}; 253 characters except ':', '/', '%' and spaces")
        elif config.name in names:
            reader.add(f"{path}.name", f"found {config.name!r} again; each provider needs a name of its own")
        names.add(config.name)
        if (authenticator := _authenticator(config, f"{path}.provider", reader)) is not None:
            providers.append(
                IdentityProvider(config.name, config.challenge, config.login, config.mapping_method, authenticator)
            )
    if reader.found:
        raise InvalidIdentityProviders("\n".join(reader.found))
    return tuple(providers)


def _authenticator(config: IdentityProviderConfig, path: str, reader: _Reader) -> Authenticator | None:
    api_version, kind_name = config.provider.get("apiVersion"), config.provider.get("kind")
    if api_version != "v1":
        reader.add(f"{path}.apiVersion", f"found {api_version!r:.80}; v1 is accepted")
    kind = KINDS.get(kind_name) if isinstance(kind_name, str) else None
    if kind is None:
        reader.add(f"{path}.kind", f"found {kind_name!r:.80}; {', '.join(KINDS)} are accepted")
        return None
    form = reader.convert(path, config.provider, kind.form, ignored=_TYPE_META)
    return None if form is None else kind.build(config.name, form, path, reader)
