"""Asking as somebody else, by the headers Impersonate-User, -Group, -Uid and -Extra-KEY. Pure.

Raises `errors.StatusError`.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from master import errors
from master.auth.attributes import ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED, Attributes, User
from master.auth.rbac import SERVICE_ACCOUNT_USER_PREFIX

USER, GROUP, UID, EXTRA = "impersonate-user", "impersonate-group", "impersonate-uid", "impersonate-extra-"
AUTHENTICATION = "authentication.k8s.io"


@dataclass(frozen=True, slots=True)
class Impersonation:
    """Whom somebody wants to be, and everything that they must be allowed for it."""

    user: User
    needed: tuple[Attributes, ...]


def parse_impersonation(headers: Iterable[tuple[str, str]]) -> Impersonation | None:
    """What the headers ask for; None if they ask for nothing."""
    found = [(key.lower(), value) for key, value in headers if key.lower().startswith("impersonate-")]
    if not found:
        return None
    name = next((value for key, value in found if key == USER), "")
    if not name:
        shown = ", ".join(f"{key}: {value}" for key, value in found)
        raise errors.bad_request(f"requested {shown} without impersonating a user")
    groups = [value for key, value in found if key == GROUP]
    uid = next((value for key, value in found if key == UID), "")
    extra: dict[str, list[str]] = {}
    for key, value in found:
        if key.startswith(EXTRA):
            extra.setdefault(urllib.parse.unquote(key.removeprefix(EXTRA)), []).append(value)
    needed = (*_user_name(name), *(_attributes("groups", one) for one in groups), *_extra(uid, extra))
    rows = tuple((key, tuple(values)) for key, values in sorted(extra.items()))
    return Impersonation(User(name, frozenset(_groups(name, groups)), uid, rows), needed)


def _attributes(resource: str, name: str, namespace: str = "") -> Attributes:
    return Attributes("impersonate", "", resource, namespace=namespace, name=name)


def _user_name(name: str) -> Iterator[Attributes]:
    account = _service_account(name)
    yield _attributes("users", name) if account is None else _attributes("serviceaccounts", account[1], account[0])


def _service_account(name: str) -> tuple[str, str] | None:
    """(namespace, name) of the service account that a user is, or None."""
    namespace, colon, account = name.removeprefix(SERVICE_ACCOUNT_USER_PREFIX).partition(":")
    return (
        (namespace, account)
        if name.startswith(SERVICE_ACCOUNT_USER_PREFIX) and colon and namespace and account
        else None
    )


def _extra(uid: str, extra: dict[str, list[str]]) -> Iterator[Attributes]:
    if uid:
        yield Attributes("impersonate", AUTHENTICATION, "uids", name=uid)
    for key, values in extra.items():
        for value in values:
            yield Attributes("impersonate", AUTHENTICATION, "userextras", subresource=key, name=value)


def _groups(name: str, asked: list[str]) -> Iterator[str]:
    yield from asked
    account = _service_account(name)
    if account is not None and not asked:
        yield from ("system:serviceaccounts", f"system:serviceaccounts:{account[0]}")
    if name == ANONYMOUS:
        yield UNAUTHENTICATED
    elif UNAUTHENTICATED not in asked:
        yield AUTHENTICATED
