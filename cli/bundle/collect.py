"""Collects versions, settings, logs, the state of the network and the objects of the cluster. Driver."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.metadata
import platform
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from api.client.client import Client, ClientError, resource_path
from api.client.kubeconfig import BadKubeconfig
from api.core.config import Secret, secret_data
from api.meta.redaction import MIN_KNOWN
from cli.bundle import content
from cli.bundle.archive import MAX_MEMBER, Archive
from cli.doctor import probes
from cli.doctor.command import as_json, as_text, examine_with_progress
from cli.doctor.host import AGENT, FILES, SDN, Host, run
from cli.doctor.observations import NotObserved
from cli.kubeconfig import load_administrator

PROGRAM_SECONDS = 20.0
JOURNAL_LINES = 5000
MAX_OBJECTS, MAX_LISTED, PAGE = 2000, 32 << 20, 100
"""Objects of one kind, their bytes, and objects of one response: a tenant chooses how many and how large they are."""

MAX_SECRETS, MAX_VALUES, MAX_VALUE, MAX_VALUE_BYTES = 20_000, 20_000, 64 << 10, 8 << 20
"""Secrets that are read, and their values that are looked for in all that is collected: number, longest, and bytes."""

JSON = (("Accept", "application/json"),)
METADATA_ONLY = (("Accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"),)

OBJECTS: tuple[tuple[str, Callable[[Mapping[str, Any]], dict[str, Any]]], ...] = (
    ("/api/v1/nodes", content.whole),
    ("/api/v1/pods", content.pod),
    ("/api/v1/events", content.event),
    ("/apis/network.openshift.io/v1/clusternetworks", content.whole),
    ("/apis/network.openshift.io/v1/hostsubnets", content.whole),
    ("/apis/network.openshift.io/v1/netnamespaces", content.whole),
)
"""Objects that are collected with more than their names, and what of them."""


def programs(host: Host) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the members that programs print, and their commands."""
    yield from (
        ("host/uname.txt", ("uname", "-a")),
        ("host/os-release.txt", ("cat", "/etc/os-release")),
        ("host/addresses.txt", ("ip", "-d", "-s", "address")),
        ("host/routes.txt", ("ip", "route", "show", "table", "all")),
        ("host/neighbours.txt", ("ip", "neighbour")),
        ("host/listening.txt", ("ss", "-lntu")),
        ("host/disks.txt", ("df", "-hT")),
        ("host/memory.txt", ("cat", "/proc/meminfo")),
        ("host/nft.txt", ("nft", "list", "ruleset")),
    )
    if host.sdn is not None:
        database, bridge = f"--db=unix:{host.sdn.ovs_rundir}/db.sock", f"unix:{host.sdn.ovs_rundir}/br0.mgmt"
        yield "ovs/show.txt", ("ovs-vsctl", database, "--timeout=10", "show")
        for table in ("Open_vSwitch", "Bridge", "Interface"):
            yield f"ovs/{table}.txt", ("ovs-vsctl", database, "--timeout=10", "list", table)
        yield "ovs/flows.txt", ("ovs-ofctl", "-O", "OpenFlow14", "dump-flows", bridge)
        yield "ovs/ports.txt", ("ovs-ofctl", "-O", "OpenFlow14", "dump-ports-desc", bridge)
    if host.agent is not None:
        docker = ("docker", f"--host=unix://{host.agent.docker_socket}")
        yield "docker/version.txt", (*docker, "version")
        yield "docker/info.txt", (*docker, "info")
        # Without the commands, which may have passwords.
        columns = "{{.ID}}\t{{.Names}}\t{{.Image}}\t{{.State}}\t{{.Status}}\t{{.RunningFor}}"
        yield "docker/containers.txt", (*docker, "ps", "--all", "--no-trunc", "--format", columns)
        yield "docker/images.txt", (*docker, "images", "--digests")
    if host.with_units:
        yield (
            "units/list.txt",
            ("systemctl", "list-units", "--all", "--no-pager", "podlane*", "docker*", "openvswitch*"),
        )
        for daemon in host.daemons:
            unit = f"{daemon}.service"
            yield f"units/{daemon}.txt", ("systemctl", "cat", "--no-pager", unit)
            words = ("journalctl", "--no-pager", "-o", "short-iso", "-n", str(JOURNAL_LINES), "-u", unit)
            yield f"journal/{daemon}.txt", words


async def collect(host: Host, config: Path, archive: Archive, progress: Callable[[str], None]) -> None:
    """Put everything into the archive. What cannot be had is noted."""
    progress("versions and settings")
    archive.add("versions.txt", f"podlane {_version('podlane')}\npython {platform.python_version()}\n".encode())
    for daemon in host.daemons:
        _add_file(archive, config / FILES[daemon])
    progress("podlane doctor")
    found = await examine_with_progress(host)
    archive.add("doctor.txt", as_text(found).encode())
    archive.add("doctor.json", as_json(found).encode())
    progress("logs and the state of the host")
    for name, command in programs(host):
        await _add(archive, name, functools.partial(_printed, command))
    progress("metrics")
    for daemon, settings in ((SDN, host.sdn), (AGENT, host.agent)):
        if settings is not None:
            url = f"http://{settings.health_address}/metrics"
            await _add(archive, f"metrics/{daemon}.txt", functools.partial(_body, url))
    if host.master is not None:
        progress("objects of the cluster")
        await _add_cluster(archive, host.master.administrator)


def _version(name: str) -> str:
    return importlib.metadata.version(name)


def _add_file(archive: Archive, file: Path) -> None:
    try:
        archive.add(f"settings/{file.name}", content.settings(file.read_bytes()[:MAX_MEMBER]))
    except OSError as error:
        archive.note(f"{file}: {error.strerror}")


async def _printed(command: Sequence[str]) -> bytes:
    return (await run(command, PROGRAM_SECONDS)).encode()


async def _body(url: str) -> bytes:
    return (await probes.http_get(url, seconds=PROGRAM_SECONDS, limit=MAX_MEMBER)).body


async def _add(archive: Archive, name: str, read: Callable[[], Awaitable[bytes]]) -> None:
    try:
        archive.add(name, await read())
    except (NotObserved, OSError, ClientError, msgspec.DecodeError) as error:
        archive.note(f"{name}: {error}")


async def _add_cluster(archive: Archive, kubeconfig: str) -> None:
    try:
        async with Client(load_administrator(kubeconfig)) as client:
            await _add(archive, "metrics/podlane-master.txt", lambda: client.request("GET", "/metrics"))
            await _add(archive, "cluster/version.json", lambda: client.request("GET", "/version"))
            await _add(archive, "cluster/readyz.txt", lambda: client.request("GET", "/readyz", query={"verbose": ""}))
            for path, kept in OBJECTS:
                name = f"cluster/{path.rpartition('/')[2]}.json"
                await _add(archive, name, functools.partial(_objects, client, path, kept))
            await _add(archive, "cluster/names.json", functools.partial(_names, client))
    except (ClientError, BadKubeconfig) as error:
        archive.note(f"cluster: {error}")


async def _objects(client: Client, path: str, kept: Callable[[Mapping[str, Any]], dict[str, Any]]) -> bytes:
    return content.encode([kept(item) for item in await _items(client, path, JSON)])


async def _items(client: Client, path: str, headers: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return the first objects of a collection."""
    items: list[dict[str, Any]] = []
    size = 0
    async for page, bytes_read in _pages(client, path, headers):
        items += page
        size += bytes_read
        if len(items) >= MAX_OBJECTS or size >= MAX_LISTED:
            break
    return items


async def _pages(
    client: Client, path: str, headers: Iterable[tuple[str, str]]
) -> AsyncIterator[tuple[Sequence[dict[str, Any]], int]]:
    """Yield the objects of each response of a collection, and its length in bytes."""
    query = {"limit": str(PAGE)}
    while True:
        body = await client.request("GET", path, query=query, headers=headers)
        listed = msgspec.json.decode(body, type=_Items)
        yield listed.items or (), len(body)
        if not listed.metadata.more:
            return
        query["continue"] = listed.metadata.more


class _ListMetadata(msgspec.Struct, frozen=True):
    more: str = msgspec.field(default="", name="continue")


class _Items(msgspec.Struct):
    """A response with objects."""

    items: list[dict[str, Any]] | None = None
    metadata: _ListMetadata = _ListMetadata()


def _decoded(body: bytes) -> dict[str, Any]:
    return msgspec.json.decode(body, type=dict[str, Any])


async def _names(client: Client) -> bytes:
    """Return the names of the objects of all kinds; only the number where names are hashes of tokens."""
    groups = _decoded(await client.request("GET", "/apis", headers=JSON)).get("groups") or ()
    versions = ["/api/v1", *(f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups)]
    found: dict[str, Any] = {}
    for version in versions:
        for resource in _decoded(await client.request("GET", version, headers=JSON)).get("resources") or ():
            if "list" in resource.get("verbs", ()) and "/" not in resource["name"]:
                path = f"{version}/{resource['name']}"
                found[path] = await _names_of(client, path)
    return content.encode(found)


async def _names_of(client: Client, path: str) -> object:
    try:
        items = await _items(client, path, METADATA_ONLY)
    except ClientError as error:
        return str(error)
    return len(items) if path.rpartition("/")[2] in content.ONLY_COUNTED else list(map(content.listed, items))


class Known(NamedTuple):
    """Secret values, and a sentence about those that are not among them, empty if none is missing."""

    values: frozenset[bytes]
    missing: str


class _Values:
    """A bounded set of secret values. A tenant chooses how many Secrets there are, and how long."""

    def __init__(self) -> None:
        self.chosen: set[bytes] = set()
        self.omitted = 0
        self._size = 0

    def add(self, values: Iterable[bytes]) -> None:
        """Add values, unless they are too long or too many."""
        for value in values:
            if len(value) < MIN_KNOWN or value in self.chosen:
                continue
            is_full = len(self.chosen) >= MAX_VALUES or self._size + len(value) > MAX_VALUE_BYTES
            if is_full or len(value) > MAX_VALUE:
                self.omitted += 1
            else:
                self.chosen.add(value)
                self._size += len(value)


async def known_secrets(host: Host) -> Known:
    """Return secret values that this host knows: keys and tokens of kubeconfigs, and on a master those of Secrets."""
    values, read, problem = _Values(), 0, ""
    # Those of this host come first, so that they are never among the omitted ones.
    files = [*host.node_kubeconfigs, *([host.master.administrator] if host.master is not None else [])]
    for file in files:
        with contextlib.suppress(BadKubeconfig):
            kubeconfig = await asyncio.to_thread(load_administrator, file)
            values.add((kubeconfig.token.encode(), *_lines(kubeconfig.key)))
    if host.master is not None:
        try:
            async with Client(load_administrator(host.master.administrator)) as client:
                async for page, _ in _pages(client, resource_path(Secret), JSON):
                    read += len(page)
                    for item in page:
                        for name, value in secret_data(msgspec.convert(item, Secret)).items():
                            values.add(_values(name, value))
                    if read >= MAX_SECRETS:
                        problem = f"after {read} Secrets no more were read"
                        break
        except (BadKubeconfig, ClientError, msgspec.MsgspecError) as error:
            problem = f"after {read} Secrets no more were read: {error}"
    omitted = f"{values.omitted} values of Secrets are too many or too long" if values.omitted else ""
    missing = "; ".join(filter(None, (omitted, problem)))
    return Known(frozenset(values.chosen), f"not looked for in this archive: {missing}" if missing else "")


def _values(name: str, value: bytes) -> set[bytes]:
    """Return what of a Secret is secret: not its certificates, and not the name of its project."""
    return set() if name in {"ca.crt", "service-ca.crt", "namespace", "tls.crt"} else {value, *_lines(value)}


def _lines(value: bytes) -> set[bytes]:
    """Return the lines of a value of several lines, such as a key: each alone is a part of the secret."""
    return {line.strip() for line in value.splitlines() if len(line) >= 32}
