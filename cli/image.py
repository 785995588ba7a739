"""`podlane image load`: puts images onto the nodes of a cluster through the master, without a registry."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from urllib.parse import quote

from api.client.client import Client, ClientError, NotFound
from api.client.kubeconfig import Kubeconfig
from api.core.node import Node
from cli import kubeconfig, object_names
from cli.command import InputError, add_command
from lab.archives import Archive, check_images, opened
from lab.load import warn_of_pulls
from lab.process import Progress

PARALLEL_NODES = 4
CHUNK_BYTES = 1 << 20
IDLE_SECONDS = 1800.0
"""Time for a node to unpack an archive after its last byte."""

PROGRESS_SECONDS = 5.0


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Add the commands of `podlane image`."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    load = add_command(commands, "load", "put images of this machine onto the nodes of the cluster", _load)
    load.add_argument(
        "images", metavar="IMAGE", nargs="+", help="image of this machine's Docker, or a docker save file"
    )
    load.add_argument(
        "--node",
        metavar="NODE",
        dest="nodes",
        type=object_names.node,
        action="append",
        default=[],
        help="only this node; may be repeated",
    )
    kubeconfig.add_argument(load)


def _load(arguments: argparse.Namespace) -> int:
    """Load each image onto all nodes. Returns 1 if a node did not get one."""
    progress = Progress()
    administrator = kubeconfig.load(arguments.kubeconfig)
    check_images(arguments.images)
    failures = 0
    for image in arguments.images:
        with opened(image) as archive:
            failures += asyncio.run(_load_archive(administrator, archive, arguments.nodes, progress))
            warn_of_pulls(archive.ids, progress)
    return 1 if failures else 0


async def _load_archive(administrator: Kubeconfig, archive: Archive, wanted: Sequence[str], progress: Progress) -> int:
    """Load an archive onto nodes, and return how many did not get it. Raises ClientError and InputError."""
    async with kubeconfig.connect(administrator) as client:
        nodes = (await client.list(Node)).items
        names = chosen_nodes(nodes, wanted)
        progress(f"loading {archive.title}, {archive.size / 1e6:.0f} MB, onto {len(names)} of {len(nodes)} nodes")
        slots = asyncio.Semaphore(PARALLEL_NODES)

        async def problem_of(name: str) -> str:
            async with slots:
                try:
                    await _load_on_node(client, name, archive, progress)
                except ClientError as error:
                    return str(error)
            return ""

        problems = dict(zip(names, await asyncio.gather(*map(problem_of, names)), strict=True))
    if not wanted:
        problems |= {node.metadata.name: "the node is not ready" for node in nodes if node.metadata.name not in names}
    failures = {name: problem for name, problem in problems.items() if problem}
    for name, problem in failures.items():
        sys.stderr.write(f"podlane: {name} did not get {archive.title}: {problem}\n")
    return len(failures)


async def _load_on_node(client: Client, node: str, archive: Archive, progress: Progress) -> None:
    if await _has_images(client, node, archive.ids):
        progress(f"{node} has {archive.title} already")
        return
    await client.upload(_images_path(node), _chunks(archive, node, progress), "application/x-tar", IDLE_SECONDS)
    progress(f"{node} has {archive.title}")


async def _has_images(client: Client, node: str, ids: Mapping[str, str]) -> bool:
    """Return whether a node has all images of an archive under their names."""
    for name, image_id in ids.items():
        try:
            answer = json.loads(await client.request("GET", _images_path(node), query={"name": name}))
        except NotFound:
            return False
        if answer.get("id") != image_id:
            return False
    return True


def _images_path(node: str) -> str:
    return f"/api/v1/nodes/{quote(node, safe='')}/proxy/images"


async def _chunks(archive: Archive, node: str, progress: Progress) -> AsyncIterator[bytes]:
    """Yield the content of an archive, and print from time to time how much of it was sent."""
    sent, printed_at = 0, time.monotonic()
    with archive.path.open("rb") as content:
        while chunk := content.read(CHUNK_BYTES):
            yield chunk
            sent += len(chunk)
            if time.monotonic() - printed_at > PROGRESS_SECONDS:
                printed_at = time.monotonic()
                progress(f"{node} has received {sent / 1e6:.0f} of {archive.size / 1e6:.0f} MB")


def chosen_nodes(nodes: Iterable[Node], wanted: Sequence[str]) -> list[str]:
    """Return the names of the nodes to load: the wanted ones, or all that are ready. Raises InputError. Pure."""
    ready = {
        node.metadata.name: any(c.type == "Ready" and c.status == "True" for c in node.status.conditions)
        for node in nodes
    }
    unknown = [name for name in wanted if name not in ready]
    if unknown:
        accepted = ", ".join(sorted(ready)) or "none: no node has joined"
        raise InputError(f"--node {unknown[0]}: there is no such node; accepted: {accepted}")
    names = list(dict.fromkeys(wanted)) or sorted(name for name, is_ready in ready.items() if is_ready)
    if not names:
        raise InputError("no node is ready; `kubectl get nodes` shows them")
    return names
