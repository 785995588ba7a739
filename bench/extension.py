"""Custom resources beside a built-in kind, rules in CEL, webhooks, and the weight of definitions."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import psutil

from api.client.client import Client
from api.client.kubeconfig import Kubeconfig
from bench.api_server_process import CONFIG_MAPS, FLAGS, resident
from bench.measurement import Budget, Measure, Measurement, Progress, at_floor, at_peer
from bench.process_time import cpu_seconds
from bench.raw_watch_clients import RawWatches
from tests.testbed.apiserver.custom_kind import establish
from tests.testbed.apiserver.large_definitions import large_definition
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.untyped_client import UntypedClient
from tests.testbed.streaming.fake_kubelet import PROJECT, own_address, proxy_testbed
from tests.testbed.webhook_server import WebhookServer, running_webhooks

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
PLAIN, RULED = "plain.example.org", "ruled.example.org"
RULE = {"rule": "self.color != 'none' && (!has(self.replicas) || self.replicas <= 1000)", "message": "too many"}
FILLER = "x" * 1000
IN_FLIGHT = 4
POD_IP = "10.128.0.9"

Send = Callable[[int], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Size:
    """How many rounds there are; how many requests, watches and events each has; and how many definitions there are."""

    rounds: int
    requests: int
    objects: int
    watchers: int
    events: int
    definitions: int


FULL = Size(rounds=7, requests=300, objects=1000, watchers=500, events=10, definitions=100)
SMALLEST = Size(rounds=1, requests=2, objects=3, watchers=2, events=1, definitions=2)


def measure(size: Size, progress: Progress) -> list[Measurement]:
    """Measure requests, webhooks and definitions, each on a new master."""
    parts = (_requests, _webhooks, _weight)
    return [figure for part in parts for figure in asyncio.run(_on_a_master(part, size, progress))]


MEASURE = Measure("custom resources, rules in CEL, webhooks, and definitions", measure, FULL, SMALLEST)


@dataclass(frozen=True, slots=True)
class _Master:
    """A running master, an untyped client of it, and one that returns bytes."""

    server: ApiServer
    untyped: UntypedClient
    client: Client
    root: Path

    def cpu_seconds(self) -> float:
        """Return the processor time of the master with its CEL worker."""
        children = psutil.Process(self.server.pid).children(recursive=True)
        return cpu_seconds(self.server.pid) + sum(cpu_seconds(child.pid) for child in children)


async def _on_a_master(
    part: Callable[[_Master, Size, Progress], Awaitable[list[Measurement]]], size: Size, progress: Progress
) -> list[Measurement]:
    root = Path(tempfile.mkdtemp(prefix="podlane-bench-", dir="/var/tmp"))
    server = ApiServer(root, *FLAGS)
    server.start()
    try:
        async with Client(Kubeconfig.load(server.kubeconfig)) as client:
            return await part(_Master(server, UntypedClient(client), client, root), size, progress)
    finally:
        server.stop()
        shutil.rmtree(root)


# --- requests ---------------------------------------------------------------------------------------------------------


async def _requests(master: _Master, size: Size, progress: Progress) -> list[Measurement]:
    plain = f"{await establish(master.untyped, PLAIN)}/namespaces/default/lamps"
    ruled = f"{await establish(master.untyped, RULED, RULE)}/namespaces/default/lamps"
    creates: dict[str, Send] = {
        "custom": _creating(master, plain, PLAIN),
        "ruled": _creating(master, ruled, RULED),
        "built-in": _creating(master, CONFIG_MAPS),
    }
    samples: dict[str, list[float]] = {case: [] for case in creates}
    for number in range(size.rounds + 1):
        progress(f"creates, round {number} of {size.rounds}")
        for case, send in creates.items():
            spent = await _cpu_per_request(master, send, size.requests, number)
            if number:  # The first round is a warm-up.
                samples[case].append(spent)
    custom, built_in = tuple(samples["custom"]), tuple(samples["built-in"])
    rule = tuple(max(ruled - custom, 0.0) for ruled, custom in zip(samples["ruled"], custom, strict=True))
    return [
        Measurement("create of a custom resource, CPU", "us", custom, at_peer(1.5), "", (), "ConfigMap", built_in),
        Measurement("a rule in CEL, added to a create, CPU", "us", rule),
        *await _lists(master, size, progress, plain),
        *await _watches(master, size, progress, plain),
    ]


def _creating(master: _Master, path: str, group: str = "") -> Send:
    async def create(number: int) -> None:
        document: dict[str, Any] = {"metadata": {"name": f"made-{number}"}, "data": {"filler": FILLER}}
        if group:
            metadata = {"name": f"made-{number}", "annotations": {"filler": FILLER}}
            spec = {"color": "white", "replicas": number % 10}
            document = {"apiVersion": f"{group}/v1", "kind": "Lamp", "metadata": metadata, "spec": spec}
        await master.client.request("POST", path, msgspec.json.encode(document))

    return create


async def _cpu_per_request(master: _Master, send: Send, count: int, round_number: int = 0) -> float:
    """Return the microseconds of processor time for each of several requests."""
    numbers = iter(range(round_number * count, (round_number + 1) * count))

    async def go_on() -> None:
        for number in numbers:
            await send(number)

    before = master.cpu_seconds()
    await asyncio.gather(*(go_on() for _ in range(IN_FLIGHT)))
    return (master.cpu_seconds() - before) / count * 1e6


async def _lists(master: _Master, size: Size, progress: Progress, plain: str) -> list[Measurement]:
    # The creates have made at least as many objects of both kinds.
    assert size.objects <= size.requests * (size.rounds + 1)
    samples: dict[str, list[float]] = {plain: [], CONFIG_MAPS: []}
    for number in range(size.rounds):
        progress(f"lists, round {number + 1} of {size.rounds}")
        for path, spent in samples.items():
            before = master.cpu_seconds()
            await master.client.request("GET", path, query={"limit": str(size.objects)})
            spent.append((master.cpu_seconds() - before) * 1000)
    what = f"list of {size.objects} custom resources, CPU"
    custom, built_in = tuple(samples[plain]), tuple(samples[CONFIG_MAPS])
    return [Measurement(what, "ms", custom, at_peer(1.5), "", (), "ConfigMaps", built_in)]


async def _watches(master: _Master, size: Size, progress: Progress, plain: str) -> list[Measurement]:
    context = Kubeconfig.load(master.server.kubeconfig).ssl_context()
    samples: dict[str, list[float]] = {}
    for path, group in ((plain, PLAIN), (CONFIG_MAPS, "")):
        progress(f"{size.watchers} watches of {path}")
        listed = msgspec.json.decode(await master.client.request("GET", path, query={"limit": "1"}))
        query = f"watch=1&timeoutSeconds=3600&resourceVersion={listed['metadata']['resourceVersion']}"
        with RawWatches(master.server.url, context, f"{path}?{query}", size.watchers) as watches:
            send = _creating(master, path, group)
            samples[path] = []
            for number in range(size.events):
                before, begin = master.cpu_seconds(), time.monotonic()
                delivery = asyncio.create_task(asyncio.to_thread(watches.last_after, begin))
                await send(2_000_000 + number)
                await delivery
                samples[path].append((master.cpu_seconds() - before) * 1000)
    what = f"one event to {size.watchers} watches of a custom resource, CPU"
    custom, built_in = tuple(samples[plain]), tuple(samples[CONFIG_MAPS])
    return [Measurement(what, "ms", custom, at_peer(1.5), "", (), "ConfigMaps", built_in)]


# --- webhooks ---------------------------------------------------------------------------------------------------------


async def _webhooks(master: _Master, size: Size, progress: Progress) -> list[Measurement]:
    config_maps = f"/api/v1/namespaces/{PROJECT}/configmaps"
    async with (
        proxy_testbed(master.server, master.untyped, master.root) as testbed,
        running_webhooks(master.root, f"hook.{PROJECT}.svc", own_address(), address="0.0.0.0") as hooks,
    ):
        await testbed.pod("hook", ip=POD_IP)
        port = {"port": 443, "targetPort": hooks.port}
        services, endpoints = f"/api/v1/namespaces/{PROJECT}/services", f"/api/v1/namespaces/{PROJECT}/endpoints/hook"
        await master.untyped.create(services, name="hook", spec={"selector": {"app": "hook"}, "ports": [port]})
        await master.untyped.wait_until(endpoints, lambda found: bool(found.get("subsets")))
        service = {"namespace": PROJECT, "name": "hook", "path": "/accept"}
        ways: dict[str, dict[str, Any] | None] = {
            "none": None,
            "at a URL": {"url": f"https://{own_address()}:{hooks.port}/accept"},
            "of a service, through its node": {"service": service},
        }
        samples: dict[str, list[float]] = {way: [] for way in (*ways, "bare")}
        for number in range(size.rounds + 1):
            progress(f"webhooks, round {number} of {size.rounds}")
            for way, config in ways.items():
                async with _webhook(master, hooks, config):
                    spent = await _milliseconds(_creating(master, config_maps), size.requests)
                    await master.client.request("DELETE", config_maps)
                samples[way] += [spent] * bool(number)
            async with _bare_calls(hooks) as call:
                samples["bare"] += [await _milliseconds(call, size.requests)] * bool(number)
    without, floor = samples.pop("none"), tuple(samples.pop("bare"))
    return [
        Measurement(
            f"webhook {way}, added to a create", "ms",
            tuple(max(each - plain, 0.0) for each, plain in zip(spent, without, strict=True)),
            at_floor(3), "aiohttp alone, TLS", floor,
        )
        for way, spent in samples.items()
    ]  # fmt: skip


async def _milliseconds(send: Send, count: int) -> float:
    """Return the milliseconds of each of several requests, one after another."""
    begin = time.monotonic()
    for number in range(count):
        await send(number)
    return (time.monotonic() - begin) / count * 1000


@asynccontextmanager
async def _webhook(master: _Master, hooks: WebhookServer, config: dict[str, Any] | None) -> AsyncIterator[None]:
    """Configure a validating webhook of ConfigMaps during the block; none without a configuration of its client."""
    if config is None:
        yield
        return
    rule = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}
    webhook = {
        "name": "accept.example.org", "clientConfig": {**config, "caBundle": hooks.ca_bundle}, "rules": [rule],
        "sideEffects": "None", "admissionReviewVersions": ["v1"],
    }  # fmt: skip
    await master.untyped.create(WEBHOOKS, name="bench", webhooks=[webhook])
    try:
        yield
    finally:
        await master.untyped.request("DELETE", f"{WEBHOOKS}/bench")
        hooks.reviews.clear()
        hooks.headers.clear()


@asynccontextmanager
async def _bare_calls(hooks: WebhookServer) -> AsyncIterator[Send]:
    """Yield a function that sends the webhook a review over a connection that is kept."""
    review = {"apiVersion": "admission.k8s.io/v1", "request": {"uid": "u", "operation": "CREATE", "object": FILLER}}
    connector = aiohttp.TCPConnector(ssl=False)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def call(_: int) -> None:
            async with session.post(f"https://{own_address()}:{hooks.port}/accept", json=review) as response:
                await response.read()

        yield call


# --- definitions ------------------------------------------------------------------------------------------------------


async def _weight(master: _Master, size: Size, progress: Progress) -> list[Measurement]:
    await master.client.request("GET", "/openapi/v3")
    await asyncio.sleep(1)
    at_rest = resident(master.server) / 1e6
    progress(f"{size.definitions} small definitions")
    for number in range(size.definitions):
        await establish(master.untyped, f"small{number}.example.org")
    small = await _growth(master, at_rest, size.definitions)
    at_rest_with_small = resident(master.server) / 1e6
    progress(f"{size.definitions} large definitions")
    cpu, begin = master.cpu_seconds(), time.monotonic()
    numbers = iter(range(size.definitions))

    async def install() -> None:
        for number in numbers:
            document = msgspec.json.encode(large_definition("large.example.org", number))
            await master.client.request("POST", DEFINITIONS, document)

    await asyncio.gather(*(install() for _ in range(IN_FLIGHT)))
    await master.untyped.wait_until(DEFINITIONS, lambda found: all(map(_is_established, found["items"])))
    seconds, spent = time.monotonic() - begin, master.cpu_seconds() - cpu
    large = await _growth(master, at_rest_with_small, size.definitions)
    return [
        Measurement("master at rest, resident", "MB", (at_rest,), Budget(60)),
        Measurement(f"install {size.definitions} definitions like Gateway API's", "s", (seconds,), Budget(10)),
        Measurement(f"install {size.definitions} definitions like Gateway API's, CPU", "s", (spent,)),
        Measurement("master, growth per 100 definitions of 1 KB", "MB", (small,), Budget(5)),
        Measurement("master, growth per 100 definitions like Gateway API's", "MB", (large,), Budget(5)),
    ]


async def _growth(master: _Master, before: float, count: int) -> float:
    """Return the megabytes that 100 definitions have added, once the CEL worker and the caches are at rest."""
    await asyncio.sleep(1)
    return (resident(master.server) / 1e6 - before) / count * 100


def _is_established(definition: Any) -> bool:
    conditions = definition.get("status", {}).get("conditions", ())
    return any((each["type"], each["status"]) == ("Established", "True") for each in conditions)
