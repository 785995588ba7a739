"""/stats/summary. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from api.meta import times
from node_agent.stats.cgroup_stats import CgroupUsage
from node_agent.stats.machine import MachineStats, NetworkInterface
from node_agent.stats.model import ContainerStats, DiskUsage, FilesystemStats, NodeStats, PodStats

Document = dict[str, Any]
Rates = Mapping[str, int]
"""Billionths of a core: of the machine by the empty name, of pods by their uid, of containers by their id."""


def summary_document(node: str, figures: NodeStats, rates: Rates, *, brief: bool) -> Document:
    """The whole document. `brief`: CPU and memory only."""
    return {
        "node": _node(node, figures, rates, brief=brief),
        "pods": [_pod(one, figures, rates, brief=brief) for one in figures.pods],
    }


def _node(name: str, figures: NodeStats, rates: Rates, *, brief: bool) -> Document:
    now, machine = _time(figures.at), figures.machine
    document: Document = {
        "nodeName": name,
        "systemContainers": _everyone(figures, rates),
        "startTime": _time(machine.booted),
        "cpu": _cpu(now, rates.get("", 0), machine.cpu),
        "memory": {"time": now, "availableBytes": machine.available, **_memory_of(machine)},
    }
    if brief:
        return document
    document["network"] = _network(now, machine.links, machine.main_link)
    if figures.node_disk is not None:
        document["fs"] = _disk(now, figures.node_disk)
    if figures.image_disk is not None:
        images = _disk(now, figures.image_disk)
        document["runtime"] = {"imageFs": images, "containerFs": images}
    document["rlimit"] = {"time": now, "maxpid": machine.tasks_limit, "curproc": machine.tasks}
    free = machine.total_swap - machine.swap
    document["swap"] = {"time": now, "swapAvailableBytes": free, "swapUsageBytes": machine.swap}
    return document


def _everyone(figures: NodeStats, rates: Rates) -> list[Document]:
    if figures.everyone is None:
        return []
    now, (path, use) = _time(figures.at), figures.everyone
    return [{"name": "pods", "cpu": _cpu(now, rates.get(path, 0), use.cpu), "memory": _memory(now, use)}]


def _pod(one: PodStats, figures: NodeStats, rates: Rates, *, brief: bool) -> Document:
    meta, now = one.pod.metadata, _time(one.at)
    document: Document = {
        "podRef": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
        "startTime": one.pod.status.start_time or _started((one.sandbox or one.containers[0]).container.started_at),
        "containers": [_container(row, one, figures, rates, brief=brief) for row in one.containers],
        "cpu": _cpu(now, rates.get(meta.uid, 0), one.use.cpu),
        "memory": _memory(now, one.use),
    }
    if brief:
        return document
    document["swap"] = {"time": now, "swapUsageBytes": one.use.swap}
    document["process_stats"] = {"process_count": one.use.tasks}
    if one.links is not None:
        document["network"] = _network(now, one.links, one.links[0].name if one.links else "")
    disk = figures.node_disk
    if one.disk is not None and disk is not None:
        then = _time(one.disk.at)
        own, memory = one.disk.volumes, one.disk.memory
        rows = [{**_disk(then, memory.get(name, disk), own[name]), "name": name} for name in sorted(own)]
        on_disk = (taken for name, taken in own.items() if name not in memory)
        whole = _sum((*one.disk.written.values(), *one.disk.logs.values(), *on_disk))
        document["ephemeral-storage"] = _disk(then, disk, whole)
        document["volume"] = rows
    document["volume"] = [*document.get("volume", ()), *_claims(one)]
    return document


def _claims(one: PodStats) -> list[Document]:
    """A claim takes what is taken of its file system: others may be in there with it."""
    named = {row.name: row.persistent_volume_claim for row in one.pod.spec.volumes}
    rows = []
    for name, space in sorted(one.claims.items()):
        claim = named.get(name)
        if claim is not None:
            reference = {"name": claim.claim_name, "namespace": one.pod.metadata.namespace}
            rows.append({**_disk(_time(one.at), space), "name": name, "pvcRef": reference})
    return rows


def _container(one: ContainerStats, pod: PodStats, figures: NodeStats, rates: Rates, *, brief: bool) -> Document:
    now, identity = _time(one.at), one.container.id
    document: Document = {
        "name": one.container.name,
        "startTime": _started(one.container.started_at),
        "cpu": _cpu(now, rates.get(identity, 0), one.use.cpu),
        "memory": _memory(now, one.use),
    }
    if brief:
        return document
    document["swap"] = {"time": now, "swapUsageBytes": one.use.swap}
    disk = pod.disk
    if disk is not None:
        then = _time(disk.at)
        if identity in disk.written and figures.image_disk is not None:
            document["rootfs"] = _disk(then, figures.image_disk, disk.written[identity])
        if identity in disk.logs and figures.image_disk is not None:
            document["logs"] = _disk(then, figures.image_disk, disk.logs[identity])
    return document


# --- parts ------------------------------------------------------------------------------------------------------------


def _cpu(now: str, rate: int, used: int) -> Document:
    return {"time": now, "usageNanoCores": rate, "usageCoreNanoSeconds": used}


def _memory(now: str, use: CgroupUsage) -> Document:
    available = {} if use.available is None else {"availableBytes": use.available}
    return {"time": now, **available, **_memory_of(use)}


def _memory_of(use: CgroupUsage | MachineStats) -> Document:
    return {
        "usageBytes": use.memory,
        "workingSetBytes": use.working_set,
        "rssBytes": use.rss,
        "pageFaults": use.page_faults,
        "majorPageFaults": use.major_faults,
    }


def _network(now: str, links: tuple[NetworkInterface, ...], main: str) -> Document:
    rows = [
        {
            "name": one.name,
            "rxBytes": one.rx_bytes,
            "rxErrors": one.rx_errors,
            "txBytes": one.tx_bytes,
            "txErrors": one.tx_errors,
        }
        for one in links
    ]
    first = next((row for row in rows if row["name"] == main), {})
    return {"time": now, **first, "interfaces": rows}


def _disk(now: str, space: FilesystemStats, taken: DiskUsage | None = None) -> Document:
    """Of a file system, what is taken of it by one, or by all."""
    whole = DiskUsage(space.used, space.inodes - space.inodes_free)
    size, inodes = taken or whole
    return {
        "time": now,
        "availableBytes": space.available,
        "capacityBytes": space.capacity,
        "usedBytes": size,
        "inodesFree": space.inodes_free,
        "inodes": space.inodes,
        "inodesUsed": inodes,
    }


def _sum(rows: Iterable[DiskUsage]) -> DiskUsage:
    found = list(rows)
    return DiskUsage(sum(one.size for one in found), sum(one.inodes for one in found))


def _time(seconds: float) -> str:
    return times.format_time(datetime.fromtimestamp(seconds, UTC))


def _started(moment: datetime | None) -> str | None:
    return None if moment is None else times.format_time(moment)
