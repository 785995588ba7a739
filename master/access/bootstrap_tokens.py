"""Tokens with which machines join before they have certificates: Secrets of a type of their own. Pure.

Source: bootstrap tokens of Kubernetes.
"""

from __future__ import annotations

import datetime
import hmac
import re

from api.core.config import Secret
from master.access.authorize import AUTHENTICATED, User
from master.kinds.kind import parse_time
from reconcile.errors import Refused

TYPE = "bootstrap.kubernetes.io/token"
NAMESPACE, PREFIX = "kube-system", "bootstrap-token-"
GROUP = "system:bootstrappers"

_TOKEN = re.compile(r"([a-z0-9]{6})\.([a-z0-9]{16})")
_GROUP = re.compile(r"system:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]")


def name(token: str) -> str:
    """The name of the Secret in which such a token stands; empty if it has not the form of one."""
    found = _TOKEN.fullmatch(token)
    return f"{PREFIX}{found[1]}" if found else ""


def user(token: str, secret: Secret | None, now: datetime.datetime) -> User:
    """Who presents it. Raises Refused."""
    found = _TOKEN.fullmatch(token)
    if found is None or secret is None or secret.type != TYPE or secret.metadata.deletion_timestamp:
        raise Refused("there is no such bootstrap token")
    told = {key: value.decode(errors="replace") for key, value in secret.data.items()}
    right = hmac.compare_digest(told.get("token-secret", "").encode(), found[2].encode())
    if not right or told.get("token-id") != found[1] or secret.metadata.name != f"{PREFIX}{found[1]}":
        raise Refused("there is no such bootstrap token")
    if is_over(secret, now):
        raise Refused("the bootstrap token has expired")
    if told.get("usage-bootstrap-authentication") != "true":
        raise Refused("the bootstrap token is not for authentication")
    more = [group.strip() for group in told.get("auth-extra-groups", "").split(",") if group.strip()]
    for group in more:
        if not _GROUP.fullmatch(group):
            raise Refused(f"the bootstrap token names the group {group!r}; {GROUP}:... is accepted")
    return User(f"system:bootstrap:{found[1]}", frozenset((GROUP, *more, AUTHENTICATED)))


def is_over(secret: Secret, now: datetime.datetime) -> bool:
    """Whether its time has come; a time that is none counts as one that has."""
    text = secret.data.get("expiration", b"").decode(errors="replace")
    ends = parse_time(text)
    return bool(text) and (ends is None or ends <= now)
