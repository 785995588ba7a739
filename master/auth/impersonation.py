"""Impersonation by the headers Impersonate-User, -Group, -Uid and -Extra-KEY. Pure.

Raises `errors.StatusError`.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from master import errors
from master.auth.attributes import (
    ANONYMOUS,
    AUTHENTICATED,
    SERVICE_ACCOUNT_USER_PREFIX,
    UNAUTHENTICATED,
    Attributes,
    User,
    service_account_groups,
)

USER, GROUP, UID, EXTRA = "impersonate-user", "impersonate-group", "impersonate-uid", "impersonate-extra-"
AUTHENTICATION = "authentication.k8s.io"


@dataclass(frozen=True, slots=True)
class Impersonation:
    """The user to impersonate, and the requests that must be allowed for it."""

    user: User
    required: tuple[Attributes, ...]


def parse_impersonation(headers: Iterable[tuple[str, str]]) -> Impersonation | None:
    """Return the impersonation that the headers request; None if they request none. Raises BadRequest."""
    impersonation_headers = [(key.lower(), value) for key, value in headers if key.lower().startswith("impersonate-")]
    if not impersonation_headers:
        return None
    name = next((value for key, value in impersonation_headers if key == USER), "")
    if not name:
        listed = ", ".join(f"{key}: {value}" for key, value in impersonation_headers)
        raise errors.bad_request(f"requested {listed} without impersonating a user")
    groups = [value for key, value in impersonation_headers if key == GROUP]
    uid = next((value for key, value in impersonation_headers if key == UID), "")
    extra: dict[str, list[str]] = {}
    for key, value in impersonation_headers:
        if key.startswith(EXTRA):
            extra.setdefault(urllib.parse.unquote(key.removeprefix(EXTRA)), []).append(value)
    required = (*_user_name(name), *(_attributes("groups", group) for group in groups), *_extra(uid, extra))
    extra_values = tuple((key, tuple(values)) for key, values in sorted(extra.items()))
    return Impersonation(User(name, frozenset(_groups(name, groups)), uid, extra_values), required)


def _attributes(resource: str, name: str, namespace: str = "") -> Attributes:
    return Attributes("impersonate", "", resource, namespace=namespace, name=name)


def _user_name(name: str) -> Iterator[Attributes]:
    account = _service_account(name)
    yield _attributes("users", name) if account is None else _attributes("serviceaccounts", account[1], account[0])


def _service_account(name: str) -> tuple[str, str] | None:
    """Return (namespace, name) of the service account that a user is, or None."""
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


def _groups(name: str, requested: list[str]) -> Iterator[str]:
    yield from requested
    account = _service_account(name)
    if account is not None and not requested:
        yield from service_account_groups(account[0])
    if name == ANONYMOUS:
        yield UNAUTHENTICATED
    elif UNAUTHENTICATED not in requested:
        yield AUTHENTICATED
