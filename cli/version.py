"""`podlane version`: the versions of this command and of the master."""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import platform
from collections.abc import Iterator
from typing import Any

import msgspec

from api.client.client import InvalidResponse
from cli import kubeconfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `podlane version`."""
    parser.add_argument("--client", action="store_true", help="the version of this command only; no master is needed")
    parser.add_argument("-o", "--output", choices=("json",), help="print all that is known, as JSON")
    kubeconfig.add_argument(parser)


def show(arguments: argparse.Namespace) -> int:
    """Print the versions, that of the client also if the server does not answer. Raises ClientError, BadKubeconfig."""
    versions: dict[str, Any] = {"clientVersion": client_version()}
    is_json = arguments.output == "json"
    if not is_json:
        # A master that does not answer takes its time.
        print(_line("Client", versions["clientVersion"]), flush=True)
    try:
        if not arguments.client:
            versions["serverVersion"] = asyncio.run(_server_version(arguments))
    finally:
        if is_json:
            print(msgspec.json.format(msgspec.json.encode(versions), indent=2).decode())
    if not is_json and not arguments.client:
        print("\n".join(_server_lines(versions["serverVersion"])))
    return 0


def client_version() -> dict[str, str]:
    """Return the version of this command, in the form in which kubectl prints its own."""
    version = importlib.metadata.version("podlane")
    major, minor, *_ = version.split(".")
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return {
        "major": major,
        "minor": minor,
        "gitVersion": f"v{version}",
        "compiler": f"Python {platform.python_version()}",
        "platform": f"linux/{machine}",
    }


async def _server_version(arguments: argparse.Namespace) -> dict[str, Any]:
    async with kubeconfig.connect(kubeconfig.load(arguments.kubeconfig)) as client:
        body = await client.request("GET", "/version")
    try:
        version = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidResponse(f"the response to /version is not JSON: {error}") from None
    if not isinstance(version, dict) or not isinstance(version.get("gitVersion"), str):
        raise InvalidResponse("the response to /version has no gitVersion")
    return version


def _server_lines(version: dict[str, Any]) -> Iterator[str]:
    yield _line("Server", version)
    if isinstance(master := version.get("podlaneVersion"), str):
        yield f"Master Version: {master}"


def _line(what: str, version: dict[str, Any]) -> str:
    return f"{what} Version: {version['gitVersion']}"
