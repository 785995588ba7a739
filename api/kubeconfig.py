"""Where the master is, and who we are to it: the current context of a kubeconfig file."""

from __future__ import annotations

import base64
import binascii
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


class BadKubeconfig(Exception):
    """`str(error)` names the file, the entry, and what is accepted."""


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """`server` is an https URL without a trailing slash; the other three are PEM."""

    server: str
    ca: bytes
    certificate: bytes = b""
    key: bytes = b""

    @classmethod
    def load(cls, path: Path | str) -> Kubeconfig:
        """Read a file as kubectl does; paths inside it are relative to it. Raises BadKubeconfig."""
        place = Path(path)
        try:
            document = yaml.safe_load(place.read_text())
            context = _named(document["contexts"], document["current-context"])["context"]
            cluster = _named(document["clusters"], context["cluster"])["cluster"]
            user = _named(document["users"], context["user"])["user"]
            return cls(
                server=cluster["server"].rstrip("/"),
                ca=_data(cluster, "certificate-authority", place.parent),
                certificate=_data(user, "client-certificate", place.parent),
                key=_data(user, "client-key", place.parent),
            )
        except OSError as error:
            raise BadKubeconfig(f"{place}: {error.strerror}") from None
        except (KeyError, TypeError, StopIteration, yaml.YAMLError, binascii.Error) as error:
            raise BadKubeconfig(
                f"{place}: not a kubeconfig with a current context that names a cluster and a user ({error!r})"
            ) from None

    def ssl_context(self) -> ssl.SSLContext:
        """Trusts only the cluster's own authority, and shows our certificate if we have one."""
        context = ssl.create_default_context(cadata=self.ca.decode())
        if self.certificate:
            with tempfile.TemporaryDirectory() as folder:
                both = Path(folder) / "client.pem"
                both.touch(mode=0o600)
                both.write_bytes(self.certificate + b"\n" + self.key)
                context.load_cert_chain(both)
        return context

    def text(self, cluster: str, user: str) -> str:
        """The file that `load` reads, with everything inline."""
        document: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": cluster,
                    "cluster": {"server": self.server, "certificate-authority-data": _encoded(self.ca)},
                }
            ],
            "users": [
                {
                    "name": user,
                    "user": {
                        "client-certificate-data": _encoded(self.certificate),
                        "client-key-data": _encoded(self.key),
                    },
                }
            ],
            "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": user}}],
            "current-context": cluster,
        }
        return yaml.safe_dump(document, sort_keys=False)


def _named(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(entry for entry in entries if entry["name"] == name)


def _data(entry: dict[str, Any], key: str, folder: Path) -> bytes:
    inline = entry.get(f"{key}-data")
    if inline:
        return base64.b64decode(inline)
    return (folder / entry[key]).read_bytes() if entry.get(key) else b""


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()
