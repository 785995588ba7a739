"""Tokens of service accounts, as a node asks for them on behalf of a pod (TokenRequest). Pure."""

from __future__ import annotations

from api.objects import Object
from api.value import Value


class BoundObjectReference(Value, frozen=True):
    """The object with which the token loses its worth; without a uid it is the one that has the name now."""

    kind: str = ""
    api_version: str = ""
    name: str = ""
    uid: str = ""


class TokenRequestSpec(Value, frozen=True):
    """`audiences` empty means the API server's own."""

    audiences: tuple[str, ...] = ()
    expiration_seconds: int | None = None
    bound_object_ref: BoundObjectReference | None = None


class TokenRequestStatus(Value, frozen=True):
    """The answer."""

    token: str = ""
    expiration_timestamp: str = ""


class TokenRequest(Object, frozen=True):
    """Is asked for and answered, never kept."""

    API_VERSION = "authentication.k8s.io/v1"
    KIND = "TokenRequest"

    spec: TokenRequestSpec = TokenRequestSpec()
    status: TokenRequestStatus = TokenRequestStatus()
