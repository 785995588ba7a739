"""Which right a request to the agent needs: paths are subresources of the node. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from api.pem import shown_by

VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}

BY_PATH = (
    ("/stats", ("stats",)),
    ("/metrics", ("metrics",)),
    ("/logs", ("log",)),
    ("/checkpoint", ("checkpoint",)),
    ("/pods", ("pods", "proxy")),
    ("/runningpods", ("pods", "proxy")),
    ("/healthz", ("healthz", "proxy")),
    ("/configz", ("configz", "proxy")),
)
"""Path → subresources of `nodes` that open it, one of which is enough; `proxy` opens every other path."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, by a client certificate or by a token."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def may_everything(self) -> bool:
        """Whether nobody has to be asked; so does the API server come, also while it cannot be asked."""
        return "system:masters" in self.groups


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request needs: a verb on one of these subresources of the node."""

    verb: str
    subresources: tuple[str, ...]

    def asked_by(self, caller: Caller) -> str:
        """Who wants what."""
        names = " ".join(self.subresources)
        return f"user={caller.name}, verb={self.verb}, resource=nodes, subresource(s)=[{names}]"


def wish(method: str, path: str) -> Wish:
    """What a request needs."""
    found = (names for prefix, names in BY_PATH if path == prefix or path.startswith(f"{prefix}/"))
    return Wish(VERBS.get(method, "get"), next(found, ("proxy",)))


def caller_of(certificate: Mapping[str, Any] | None) -> Caller | None:
    """Whom a verified certificate names, in the form of `ssl.SSLSocket.getpeercert`; None without a name."""
    shown = shown_by(certificate)
    return Caller(shown.user, (*shown.groups, "system:authenticated")) if shown.user else None
