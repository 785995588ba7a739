"""Fetches images through Docker, and tells a registry that is away from one that refuses."""

from __future__ import annotations

from typing import Any

from node_agent.credentials import Credential
from reconcile.errors import NotReady, Refused

PASSING = ("connection refused", "no such host", "timeout", "i/o timeout", "unreachable")


def is_passing(words: str) -> bool:
    """Whether Docker's words tell of a trouble that may be over soon."""
    return any(sign in words for sign in PASSING)


def pull(client: Any, name: str, credential: Credential | None) -> None:
    """An error that comes after the first progress stands in the stream, under a status of 200."""
    repository, tag = _reference(name)
    auth = None if credential is None else credential._asdict()
    for line in client.pull(repository, tag=tag, stream=True, decode=True, auth_config=auth):
        if "error" in line:
            raise (NotReady if is_passing(line["error"]) else Refused)(f"Docker: {line['error']}")


def _reference(name: str) -> tuple[str, str]:
    """The repository and the tag (or digest) to pull; without one it is `latest`, not every tag there is."""
    if "@" in name:
        repository, _, digest = name.partition("@")
        return repository, digest
    head, colon, tag = name.rpartition(":")
    return (head, tag) if colon and "/" not in tag else (name, "latest")
