"""Projects that the arguments of commands name."""

from __future__ import annotations

from collections.abc import Iterable

from api.client.client import Client, ClientError, NotFound
from api.core.node import Namespace


class NoProject(ClientError):
    """A project that does not exist."""


async def check_projects(client: Client, projects: Iterable[str]) -> None:
    """Return if all projects exist. Raises NoProject."""
    for project in projects:
        try:
            await client.get(Namespace, project)
        except NotFound:
            raise NoProject(f"there is no project {project!r}") from None


async def check_project_of(client: Client, name: str) -> None:
    """Return if the project of PROJECT/NAME exists, or if the name has none. Raises NoProject."""
    project, slash, _ = name.partition("/")
    if slash:
        await check_projects(client, [project])
