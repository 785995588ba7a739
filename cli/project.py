"""Projects that the arguments of commands name."""

from __future__ import annotations

from collections.abc import Iterable

from api.client.client import Client
from api.core.node import Namespace


async def check_projects(client: Client, projects: Iterable[str]) -> None:
    """Return if all projects exist. Raises NotFound with the API server's message, as kubectl prints it."""
    for project in projects:
        await client.get(Namespace, project)


async def check_project_of(client: Client, name: str) -> None:
    """Return if the project of PROJECT/NAME exists, or if the name has none. Raises NotFound."""
    project, slash, _ = name.partition("/")
    if slash:
        await check_projects(client, [project])
