"""Kubeconfig files: the server and the credentials of the current context."""

from __future__ import annotations

import base64
import binascii
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
            document = yaml.safe_load(path.read_text())
            context = _find_entry(document["contexts"], document["current-context"])["context"]
            cluster = _find_entry(document["clusters"], context["cluster"])["cluster"]
            user = _find_entry(document["users"], context["user"])["user"] or {}
            referenced = (cluster.get("certificate-authority"), *(user.get(key) for key in _USER_FILES))
            return cls(
                server=cluster["server"].rstrip("/"),
                ca=_data(cluster, "certificate-authority", path.parent),
                certificate=_data(user, "client-certificate", path.parent),
                key=_data(user, "client-key", path.parent),
                token=_token(user, path.parent),
                server_name=cluster.get("tls-server-name") or "",
                insecure=bool(cluster.get("insecure-skip-tls-verify")),
                source=path,
                files=(path, *(path.parent / name for name in referenced if name)),
            )
        except OSError as error:
            raise BadKubeconfig(f"{error.filename or path}: {error.strerror}") from None
        except (KeyError, TypeError, AttributeError, StopIteration, yaml.YAMLError, binascii.Error) as error:
            raise BadKubeconfig(
                f"{path}: not a kubeconfig with a current context that names a cluster and a user ({error!r})"
            ) from None

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
            raise BadKubeconfig(f"{source}: its certificates and key do not go together: {error}") from None

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
                context.load_cert_chain(certificate_file, key_file)
        return context

    def with_client_certificate(self, certificate: bytes, key: bytes) -> str:
        """Return the file's text with another certificate and key of the current user. Raises BadKubeconfig."""
        assert self.source is not None
        try:
            document = yaml.safe_load(self.source.read_text())
            context = _find_entry(document["contexts"], document["current-context"])["context"]
            user = _find_entry(document["users"], context["user"])
        except OSError as error:
            raise BadKubeconfig(f"{self.source}: {error.strerror}") from None
        except (KeyError, TypeError, StopIteration, yaml.YAMLError) as error:
            raise BadKubeconfig(f"{self.source}: no longer a kubeconfig ({error!r})") from None
        user["user"] = {"client-certificate-data": _base64(certificate), "client-key-data": _base64(key)}
        return yaml.safe_dump(document, sort_keys=False)

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
            document = yaml.safe_load(text) or {}
            for section in ("clusters", "users", "contexts"):
                names = {entry["name"] for entry in new[section]}
                kept = [entry for entry in document.get(section) or [] if entry["name"] not in names]
                document[section] = kept + new[section]
        except (KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
            raise BadKubeconfig(f"not a kubeconfig ({error!r})") from None
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


def _find_entry(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(entry for entry in entries if entry["name"] == name)


def _data(entry: dict[str, Any], key: str, folder: Path) -> bytes:
    inline = entry.get(f"{key}-data")
    if inline:
        return base64.b64decode(inline)
    return (folder / entry[key]).read_bytes() if entry.get(key) else b""


def _token(user: dict[str, Any], folder: Path) -> str:
    token_file = user.get("tokenFile")
    token: str = (folder / token_file).read_text().strip() if token_file else user.get("token") or ""
    return token


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
