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
    """`str(error)` names the file, the entry, and what is accepted."""


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """`server` is an https URL without a trailing slash; the next three are PEM.

    `server_name` is the name in the server's certificate, where it is not that of the URL; with `insecure` any
    certificate is taken. `source` is the file that was read, `files` are all that it rests on.
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
        place = Path(path)
        try:
            document = yaml.safe_load(place.read_text())
            context = _named(document["contexts"], document["current-context"])["context"]
            cluster = _named(document["clusters"], context["cluster"])["cluster"]
            user = _named(document["users"], context["user"])["user"] or {}
            named = (cluster.get("certificate-authority"), *(user.get(key) for key in _USER_FILES))
            return cls(
                server=cluster["server"].rstrip("/"),
                ca=_data(cluster, "certificate-authority", place.parent),
                certificate=_data(user, "client-certificate", place.parent),
                key=_data(user, "client-key", place.parent),
                token=_token(user, place.parent),
                server_name=cluster.get("tls-server-name") or "",
                insecure=bool(cluster.get("insecure-skip-tls-verify")),
                source=place,
                files=(place, *(place.parent / name for name in named if name)),
            )
        except OSError as error:
            raise BadKubeconfig(f"{error.filename or place}: {error.strerror}") from None
        except (KeyError, TypeError, AttributeError, StopIteration, yaml.YAMLError, binascii.Error) as error:
            raise BadKubeconfig(
                f"{place}: not a kubeconfig with a current context that names a cluster and a user ({error!r})"
            ) from None

    def edition(self) -> tuple[tuple[int, int], ...]:
        """Differs when one of the files has been written since. Raises OSError."""
        states = (file.stat() for file in self.files)
        return tuple((state.st_mtime_ns, state.st_ino) for state in states)

    def ssl_context(self) -> ssl.SSLContext:
        """Trusts only the cluster's own authority, and shows our certificate if we have one. Raises BadKubeconfig."""
        try:
            return self._ssl_context()
        except (ssl.SSLError, ValueError) as error:
            place = self.source or self.server
            raise BadKubeconfig(f"{place}: its certificates and key do not go together: {error}") from None

    def _ssl_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.ca.decode())
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate:
            with tempfile.TemporaryDirectory() as folder:
                # Two files: each may hold both, as a kubelet keeps them, and a chain must not have anybody twice.
                names = {"client.crt": self.certificate, "client.key": self.key}
                for name, data in names.items():
                    (Path(folder) / name).touch(mode=0o600)
                    (Path(folder) / name).write_bytes(data)
                context.load_cert_chain(Path(folder) / "client.crt", Path(folder) / "client.key")
        return context

    def renewed(self, certificate: bytes, key: bytes) -> str:
        """The text of the file with another certificate and key in the current user's place. Raises BadKubeconfig."""
        assert self.source is not None
        try:
            document = yaml.safe_load(self.source.read_text())
            context = _named(document["contexts"], document["current-context"])["context"]
            user = _named(document["users"], context["user"])
        except OSError as error:
            raise BadKubeconfig(f"{self.source}: {error.strerror}") from None
        except (KeyError, TypeError, StopIteration, yaml.YAMLError) as error:
            raise BadKubeconfig(f"{self.source}: no kubeconfig any more ({error!r})") from None
        user["user"] = {"client-certificate-data": _encoded(certificate), "client-key-data": _encoded(key)}
        return yaml.safe_dump(document, sort_keys=False)

    def text(self, cluster: str, user: str) -> str:
        """The file that `load` reads, with everything inline."""
        document: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": cluster, "cluster": self._cluster()}],
            "users": [{"name": user, "user": self._credentials()}],
            "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": user}}],
            "current-context": cluster,
        }
        return yaml.safe_dump(document, sort_keys=False)

    def _cluster(self) -> dict[str, Any]:
        found: dict[str, Any] = {"server": self.server}
        if self.ca:
            found["certificate-authority-data"] = _encoded(self.ca)
        if self.server_name:
            found["tls-server-name"] = self.server_name
        if self.insecure:
            found["insecure-skip-tls-verify"] = True
        return found

    def _credentials(self) -> dict[str, Any]:
        if self.token:
            return {"token": self.token}
        return {"client-certificate-data": _encoded(self.certificate), "client-key-data": _encoded(self.key)}


def _named(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(entry for entry in entries if entry["name"] == name)


def _data(entry: dict[str, Any], key: str, folder: Path) -> bytes:
    inline = entry.get(f"{key}-data")
    if inline:
        return base64.b64decode(inline)
    return (folder / entry[key]).read_bytes() if entry.get(key) else b""


def _token(user: dict[str, Any], folder: Path) -> str:
    named = user.get("tokenFile")
    return (folder / named).read_text().strip() if named else user.get("token") or ""


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()
