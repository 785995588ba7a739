"""Kubeconfig files: the server and the credentials of the current context."""

from __future__ import annotations

import base64
import ssl
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

_USER_FILES = ("client-certificate", "client-key", "tokenFile")


class BadKubeconfig(Exception):
    """A kubeconfig that cannot be used. The text names the file, the entry, and what is accepted."""


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """The server and the credentials of one context.

    `server` is an https URL without a trailing slash. `ca`, `certificate` and `key` are PEM. `server_name` is the name
    in the server's certificate, if it is not that of the URL. `insecure` accepts any certificate. `source` is the file
    that was read; `files` are that file and the files that it refers to.
    """

    server: str
    ca: bytes
    certificate: bytes = b""
    key: bytes = b""
    token: str = ""
    server_name: str = ""
    insecure: bool = False
    source: Path | None = None
    files: tuple[Path, ...] = ()

    @classmethod
    def load(cls, path: Path | str) -> Kubeconfig:
        """Read a file as kubectl does; paths inside it are relative to it. Raises BadKubeconfig."""
        path = Path(path)
        try:
            cluster, user = _cluster_and_user(_parse(path.read_text()))
            referenced = [_text(cluster, "certificate-authority"), *(_text(user, key) for key in _USER_FILES)]
            return cls(
                server=_text(cluster, "server", is_required=True).rstrip("/"),
                ca=_data(cluster, "certificate-authority", path.parent),
                certificate=_data(user, "client-certificate", path.parent),
                key=_data(user, "client-key", path.parent),
                token=_token(user, path.parent),
                server_name=_text(cluster, "tls-server-name"),
                insecure=bool(cluster.fields.get("insecure-skip-tls-verify")),
                source=path,
                files=(path, *(path.parent / name for name in referenced if name)),
            )
        except OSError as error:
            raise BadKubeconfig(f"{error.filename or path}: {error.strerror}; a kubeconfig is accepted") from None
        except _Problem as error:
            raise BadKubeconfig(f"{path}: {error}") from None
        except ValueError:
            # No text of another exception: it may quote the file.
            raise BadKubeconfig(f"{path}: found what is no text in UTF-8; a kubeconfig is accepted") from None

    def file_versions(self) -> tuple[tuple[int, int], ...]:
        """Return modification time and inode of each file; they differ if a file was written. Raises OSError."""
        states = (file.stat() for file in self.files)
        return tuple((state.st_mtime_ns, state.st_ino) for state in states)

    def ssl_context(self) -> ssl.SSLContext:
        """Return a context that trusts only the cluster's CA and has the client certificate. Raises BadKubeconfig."""
        try:
            return self._ssl_context()
        except (ssl.SSLError, ValueError) as error:
            source = self.source or self.server
            accepted = "a CA, and a certificate with its key, are accepted as PEM"
            raise BadKubeconfig(f"{source}: found certificates that do not go together: {error}; {accepted}") from None

    def _ssl_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.ca.decode())
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate:
            with tempfile.TemporaryDirectory() as folder:
                # Two files: each value may be a kubelet's file with certificate and key, and a chain must not have a
                # certificate twice.
                certificate_file = Path(folder) / "client.crt"
                key_file = Path(folder) / "client.key"
                for file, data in ((certificate_file, self.certificate), (key_file, self.key)):
                    file.touch(mode=0o600)
                    file.write_bytes(data)
                # With a password, a key that is encrypted is an error. Without one, OpenSSL asks the terminal.
                context.load_cert_chain(certificate_file, key_file, password="")
        return context

    def with_client_certificate(self, certificate: bytes, key: bytes) -> str:
        """Return the file's text with another certificate and key of the current user. Raises BadKubeconfig."""
        assert self.source is not None
        try:
            document = _parse(self.source.read_text())
            _, user = _cluster_and_user(document)
        except OSError as error:
            raise BadKubeconfig(f"{self.source}: {error.strerror}; a kubeconfig is accepted") from None
        except _Problem as error:
            raise BadKubeconfig(f"{self.source}: {error}") from None
        user.fields.clear()
        user.fields["client-certificate-data"] = _base64(certificate)
        user.fields["client-key-data"] = _base64(key)
        return yaml.safe_dump(document.fields, sort_keys=False)

    def without_token(self) -> str:
        """Return the file's text without the token of the current user, whichever users have it. Raises BadKubeconfig.

        Other entries stay, and so does a file that the token was read from.
        """
        assert self.source is not None
        try:
            document = yaml.safe_load(self.source.read_text())
            for entry in document["users"]:
                user = entry["user"] or {}
                if self.token and _token(user, self.source.parent) == self.token:
                    entry["user"] = {key: value for key, value in user.items() if key not in ("token", "tokenFile")}
        except OSError as error:
            raise BadKubeconfig(f"{error.filename or self.source}: {error.strerror}") from None
        except (KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
            raise BadKubeconfig(f"{self.source}: no longer a kubeconfig ({error!r})") from None
        return yaml.safe_dump(document, sort_keys=False)

    def text(self, cluster: str, user: str) -> str:
        """Return the text of a kubeconfig file with inline credentials."""
        document: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": cluster, "cluster": self._cluster()}],
            "users": [{"name": user, "user": self._credentials()}],
            "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": user}}],
            "current-context": cluster,
        }
        return yaml.safe_dump(document, sort_keys=False)

    def merged_into(self, text: str, cluster: str, user: str) -> str:
        """Return the text of a kubeconfig file with this cluster, user and context as the current ones.

        Other entries stay. Raises BadKubeconfig.
        """
        new = yaml.safe_load(self.text(cluster, user))
        try:
            document = _parse(text).fields if text.strip() else {}
            for section in ("clusters", "users", "contexts"):
                names = {entry["name"] for entry in new[section]}
                kept = [entry for entry in document.get(section) or [] if entry["name"] not in names]
                document[section] = kept + new[section]
        except _Problem as error:
            raise BadKubeconfig(str(error)) from None
        except (KeyError, TypeError):
            raise BadKubeconfig("found entries without a name; a kubeconfig is accepted") from None
        document = {**document, "apiVersion": "v1", "kind": "Config", "current-context": cluster}
        return yaml.safe_dump(document, sort_keys=False)

    def _cluster(self) -> dict[str, Any]:
        cluster: dict[str, Any] = {"server": self.server}
        if self.ca:
            cluster["certificate-authority-data"] = _base64(self.ca)
        if self.server_name:
            cluster["tls-server-name"] = self.server_name
        if self.insecure:
            cluster["insecure-skip-tls-verify"] = True
        return cluster

    def _credentials(self) -> dict[str, Any]:
        if self.token:
            return {"token": self.token}
        return {"client-certificate-data": _base64(self.certificate), "client-key-data": _base64(self.key)}


class _Problem(Exception):
    """What is wrong in a file, and where. The text has no credentials."""


class _Mapping(NamedTuple):
    """A mapping of the file, and its path."""

    path: str
    fields: dict[str, Any]


def _kind(value: object) -> str:
    names = {str: "a text", dict: "a mapping", list: "a list", type(None): "nothing"}
    return names.get(type(value), "another value")


def _parse(text: str) -> _Mapping:
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise _Problem(f"{place}found no YAML; a kubeconfig is accepted") from None
    except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError, RecursionError):
        raise _Problem("found no YAML; a kubeconfig is accepted") from None
    if not isinstance(document, dict):
        raise _Problem(f"found {_kind(document)}; a kubeconfig is accepted")
    return _Mapping("", document)


def _mapping(parent: _Mapping, key: str) -> _Mapping:
    path, value = f"{parent.path}{key}", parent.fields.get(key)
    if not isinstance(value, dict):
        raise _Problem(f"{path}: found {_kind(value)}; a mapping is accepted")
    return _Mapping(f"{path}.", value)


def _text(mapping: _Mapping, key: str, *, is_required: bool = False) -> str:
    value = mapping.fields.get(key)
    if value is None and not is_required:
        return ""
    if not isinstance(value, str) or (is_required and not value):
        raise _Problem(
            f"{mapping.path}{key}: found {_kind(value) if value != '' else 'an empty text'}; a text is accepted"
        )
    return value


def _entry(document: _Mapping, section: str, name: str, named_by: str) -> _Mapping:
    entries = document.fields.get(section)
    if not isinstance(entries, list):
        raise _Problem(f"{section}: found {_kind(entries)}; a list is accepted")
    names = []
    for index, entry in enumerate(entries):
        found = entry.get("name") if isinstance(entry, dict) else None
        if found == name:
            return _Mapping(f"{section}[{index}].", entry)
        names.append(str(found)[:80])
    accepted = f"a name in {section} is accepted: {', '.join(names[:20]) or 'there is none'}"
    raise _Problem(f"{named_by}: found {name[:80]!r}; {accepted}")


def _cluster_and_user(document: _Mapping) -> tuple[_Mapping, _Mapping]:
    """Return cluster and user of the current context. A user without credentials may be null. Raises _Problem."""
    current = _text(document, "current-context", is_required=True)
    context = _mapping(_entry(document, "contexts", current, "current-context"), "context")
    cluster_name, user_name = (_text(context, key, is_required=True) for key in ("cluster", "user"))
    cluster = _mapping(_entry(document, "clusters", cluster_name, f"{context.path}cluster"), "cluster")
    entry = _entry(document, "users", user_name, f"{context.path}user")
    if entry.fields.get("user") is None:
        entry.fields["user"] = {}
    return cluster, _mapping(entry, "user")


def _data(entry: _Mapping, key: str, folder: Path) -> bytes:
    if inline := _text(entry, f"{key}-data"):
        try:
            return base64.b64decode("".join(inline.split()), validate=True)
        except ValueError:
            raise _Problem(f"{entry.path}{key}-data: found what is no base64; base64 is accepted") from None
    name = _text(entry, key)
    return (folder / name).read_bytes() if name else b""


def _token(user: _Mapping, folder: Path) -> str:
    token_file = _text(user, "tokenFile")
    return (folder / token_file).read_text().strip() if token_file else _text(user, "token")


def kubeconfig_problems(setting: str, file: str) -> Iterator[str]:
    """Yield what is wrong with the kubeconfig that a setting names."""
    try:
        Kubeconfig.load(file).ssl_context()
    except BadKubeconfig as error:
        yield f"{setting}: {error}"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
