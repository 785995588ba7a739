"""Containers by names that may be taken: a name is free again only when its dead holder is removed."""

from __future__ import annotations

import secrets
from typing import Any

import docker.errors

SUFFIX_BYTES = 4
"""Who reads dockershim's names takes a seventh field of eight hexadecimal digits (facts/node.md 3)."""


def create_named(client: Any, config: dict[str, Any], name: str) -> str:
    """Create a container. Returns its id. Raises APIError, also while a running one has its name.

    A dead one that has its name is removed first; where that fails the name gets a suffix.
    """
    try:
        return str(client.create_container_from_config(config, name)["Id"])
    except docker.errors.APIError as error:
        if error.status_code != 409:
            raise
    try:
        client.remove_container(name, v=True)
    except docker.errors.APIError:
        if client.inspect_container(name)["State"]["Running"]:
            raise
        name = f"{name}_{secrets.token_hex(SUFFIX_BYTES)}"
    return str(client.create_container_from_config(config, name)["Id"])
