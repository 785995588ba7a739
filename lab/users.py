"""The demo users of a lab: one for each project of a tenant, with a password, a kubeconfig, and refused attempts.

A user is the administrator of the project of the same name. What the user must not do is tried as a dry run, and each
attempt that succeeds is reported.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import bcrypt
import msgspec

from api.client.client import AlreadyExists, ApiError, Client, Forbidden
from api.client.kubeconfig import Kubeconfig
from api.client.oauth_login import request_token
from lab.images import TOOLBOX
from lab.topology import Lab
from reconcile import atomic_file

USERS = ("red", "blue")
"""Users, and the projects that they administer."""

PASSWORD_COST = 6
"""Cost of the hashes of passwords: little, since they are random."""

IDENTITY_PROVIDERS = """\
identityProviders:
- name: lab
  challenge: true
  login: true
  provider: {{apiVersion: v1, kind: HTPasswdPasswordIdentityProvider, file: {file}}}
"""


def make_passwords(lab: Lab) -> None:
    """Write the password of each user, and the settings by which the master checks them."""
    lab.users.mkdir(mode=0o700)
    lines = []
    for user in USERS:
        password = secrets.token_urlsafe(9)
        atomic_file.write(password_file(lab, user), f"{password}\n".encode())
        lines.append(f"{user}:{bcrypt.hashpw(password.encode(), bcrypt.gensalt(PASSWORD_COST)).decode()}\n")
    htpasswd = lab.root / "master" / "htpasswd"
    atomic_file.write(htpasswd, "".join(lines).encode())
    lab.master_settings.write_text(IDENTITY_PROVIDERS.format(file=htpasswd))


def password_file(lab: Lab, user: str) -> Path:
    """Return the file with the password of a user."""
    return lab.users / f"{user}.password"


def kubeconfig_file(lab: Lab, user: str) -> Path:
    """Return the kubeconfig of a user."""
    return lab.users / f"{user}.kubeconfig"


async def log_in(client: Client, lab: Lab) -> None:
    """Make each user the administrator of the project of the same name, log in, and write the kubeconfigs."""
    administrator = Kubeconfig.load(lab.kubeconfig)
    for user in USERS:
        with contextlib.suppress(AlreadyExists):
            path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{user}/rolebindings"
            await client.request("POST", path, msgspec.json.encode(_admin_binding(user)))
        token = await request_token(administrator, user, password_file(lab, user).read_text().strip())
        kubeconfig = replace(administrator, certificate=b"", key=b"", token=token, source=None, files=())
        atomic_file.write(kubeconfig_file(lab, user), kubeconfig.text(user, user).encode())


def _admin_binding(user: str) -> dict[str, Any]:
    group = "rbac.authorization.k8s.io"
    return {
        "metadata": {"name": "admin", "namespace": user},
        "subjects": [{"kind": "User", "name": user, "apiGroup": group}],
        "roleRef": {"kind": "ClusterRole", "name": "admin", "apiGroup": group},
    }


@dataclass(frozen=True, slots=True)
class Attempt:
    """A request of a user. `body` is that of a POST, which is a dry run."""

    what: str
    path: str
    body: Mapping[str, Any] | None = None


def refused_attempts(user: str, other: str) -> tuple[Attempt, ...]:
    """Return what the administrator of one project must not do."""
    container = {"name": "c", "image": TOOLBOX}
    host_path = {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}
    return (
        Attempt(f"read pods of {other}", f"/api/v1/namespaces/{other}/pods"),
        Attempt(f"read secrets of {other}", f"/api/v1/namespaces/{other}/secrets"),
        Attempt(f"exec in {other}", f"/api/v1/namespaces/{other}/pods/{other}-1/exec?command=id&stdout=true"),
        Attempt("read nodes", "/api/v1/nodes"),
        _pod_attempt(user, "privileged pod", {"containers": [{**container, "securityContext": {"privileged": True}}]}),
        _pod_attempt(user, "pod with the node's files", {"containers": [container], **host_path}),
        _pod_attempt(user, "pod in the node's network", {"containers": [container], "hostNetwork": True}),
    )


def allowed_attempts(user: str) -> tuple[Attempt, ...]:
    """Return what the administrator of a project may do: the controls of the refused attempts."""
    return (
        Attempt("read its pods", f"/api/v1/namespaces/{user}/pods"),
        Attempt("read its secrets", f"/api/v1/namespaces/{user}/secrets"),
        _pod_attempt(user, "plain pod", {"containers": [{"name": "c", "image": TOOLBOX}]}),
    )


def _pod_attempt(user: str, what: str, spec: Mapping[str, Any]) -> Attempt:
    return Attempt(what, f"/api/v1/namespaces/{user}/pods?dryRun=All", {"metadata": {"name": "attempt"}, "spec": spec})


@dataclass(frozen=True, slots=True)
class Refusals:
    """What came of the attempts of the users: a line for each user, and a sentence for each wrong outcome."""

    lines: tuple[str, ...]
    unexpected: tuple[str, ...]


async def attempt_all(lab: Lab) -> Refusals:
    """Try as each user what is refused and what is allowed."""
    lines, unexpected = [], []
    for user, other in zip(USERS, reversed(USERS), strict=True):
        async with Client(Kubeconfig.load(kubeconfig_file(lab, user))) as client:
            refused = refused_attempts(user, other)
            lines.append(f"user {user} is refused: {', '.join(attempt.what for attempt in refused)}")
            unexpected += [f"user {user} may {what}" for what in await _outcomes(client, refused, wanted=False)]
            allowed = allowed_attempts(user)
            unexpected += [f"user {user} may not {what}" for what in await _outcomes(client, allowed, wanted=True)]
    return Refusals(tuple(lines), tuple(unexpected))


async def _outcomes(client: Client, attempts: Sequence[Attempt], *, wanted: bool) -> list[str]:
    """Return the attempts that do not end as wanted: allowed or refused."""
    return [attempt.what for attempt in attempts if await _is_allowed(client, attempt) is not wanted]


async def _is_allowed(client: Client, attempt: Attempt) -> bool:
    body = None if attempt.body is None else msgspec.json.encode(attempt.body)
    try:
        await client.request("GET" if body is None else "POST", attempt.path, body)
    except Forbidden:
        return False
    except ApiError:
        return True  # Only 403 is a refusal; another error comes after the decision.
    return True
