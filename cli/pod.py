"""`podlane pod`: pods that the administrator hands to the node agent of this host through its socket."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Iterable
from urllib.parse import quote

import aiohttp
import msgspec

from api.codec import manifest
from api.core.pod import Pod
from api.meta.schema import MISSING, FieldError, quoted
from api.meta.types import Status
from cli.command import add_command, read_input

SOCKET = "/run/podlane/node-agent.sock"
ANSWER_SECONDS = 60.0

Work = Callable[[argparse.Namespace, aiohttp.ClientSession], Awaitable[int]]


class RequestRejected(OSError):
    """The node agent rejected a request or does not respond; `str(error)` says why."""


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Add the commands under `podlane pod`."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    submit = add_command(
        commands, "submit", "run static pods on this node, or replace those of the same names", _run(_submit)
    )
    submit.add_argument("files", metavar="FILE", nargs="+", help="YAML or JSON; - is standard input")
    delete = add_command(commands, "delete", "delete static pods that were submitted to this node", _run(_delete))
    delete.add_argument(
        "names",
        metavar="[NAMESPACE/]NAME",
        nargs="+",
        type=_name,
        help="as in the manifest (namespace default)",
    )
    for command in (submit, delete):
        command.add_argument("--socket", metavar="PATH", default=SOCKET, help=f"socket of the node agent ({SOCKET})")


def _name(text: str) -> tuple[str, str]:
    namespace, _, name = text.rpartition("/")
    if not name or "/" in namespace or text.startswith("/"):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME or NAMESPACE/NAME")
    return namespace or "default", name


def _run(work: Work) -> Callable[[argparse.Namespace], int]:
    async def connected(arguments: argparse.Namespace) -> int:
        connector = aiohttp.UnixConnector(path=arguments.socket)
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        async with aiohttp.ClientSession("http://node", connector=connector, timeout=timeout) as http:
            return await work(arguments, http)

    return lambda arguments: asyncio.run(connected(arguments))


async def _submit(arguments: argparse.Namespace, http: aiohttp.ClientSession) -> int:
    """Submit each document independently of the others. Returns 1 if one was rejected."""
    code = 0
    for file in arguments.files:
        for document in manifest.parse_manifest(read_input(file)):
            where = f"{file} document {document.number}"
            problems = document.errors or tuple(_problems_of(document.obj))
            if problems or not isinstance(document.obj, Pod):
                print(manifest.format_errors(where, problems))
                code = 1
                continue
            try:
                print(await _put(http, arguments.socket, document.obj))
            except RequestRejected as error:
                print(f"{where}: {error}")
                code = 1
    return code


def _problems_of(obj: object) -> Iterable[FieldError]:
    if not isinstance(obj, Pod):
        yield FieldError("kind", quoted(getattr(obj, "KIND", None)), '"Pod" is accepted here')
    elif not obj.metadata.name:
        yield FieldError("metadata.name", '""', "a name is required here", MISSING)


async def _put(http: aiohttp.ClientSession, socket: str, pod: Pod) -> str:
    namespace = pod.metadata.namespace or "default"
    body = msgspec.json.encode(pod)
    code, runs = await _request(http, "PUT", (namespace, pod.metadata.name), socket, body)
    done = "submitted" if code == 201 else "replaced"
    return f"{namespace}/{pod.metadata.name}: {done}, runs as {runs.metadata.name}"


async def _delete(arguments: argparse.Namespace, http: aiohttp.ClientSession) -> int:
    code = 0
    for name in arguments.names:
        try:
            await _request(http, "DELETE", name, arguments.socket)
            print(f"{'/'.join(name)}: ends")
        except RequestRejected as error:
            print(f"{'/'.join(name)}: {error}")
            code = 1
    return code


async def _request(
    http: aiohttp.ClientSession, method: str, name: tuple[str, str], socket: str, body: bytes | None = None
) -> tuple[int, Pod]:
    """Send a request, and return the status code and the pod. Raises RequestRejected."""
    path = "/pods/" + "/".join(quote(part, safe="") for part in name)
    try:
        async with http.request(method, path, data=body) as answer:
            content = await answer.read()
    except (aiohttp.ClientError, TimeoutError) as error:
        raise RequestRejected(f"no node agent answers on {socket}: {str(error) or 'it takes too long'}") from None
    if answer.status >= 400:
        raise RequestRejected(msgspec.json.decode(content, type=Status).message)
    return answer.status, msgspec.json.decode(content, type=Pod)
