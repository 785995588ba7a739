"""Fetches images through Docker."""

from __future__ import annotations

from typing import Any

from node_agent.credentials import Credential
from node_agent.drivers.docker_errors import is_passing
from reconcile.errors import NotReady, Refused


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
