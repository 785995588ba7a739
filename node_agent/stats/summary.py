"""/stats/summary. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from api.meta import times
from node_agent.stats.cgroup_stats import CgroupUsage
from node_agent.stats.machine import MachineStats, NetworkInterface
from node_agent.stats.model import ContainerStats, DiskUsage, FilesystemStats, NodeStats, PodDiskUsage, PodStats

Document = dict[str, Any]

CpuRates = Mapping[str, int]
"""CPU rates in billionths of a core, by the keys of `cpu_times`."""


def summary_document(node: str, stats: NodeStats, rates: CpuRates, *, cpu_and_memory_only: bool) -> Document:
    """Return the document of /stats/summary."""
    return {
        "node": _node_document(node, stats, rates, cpu_and_memory_only),
        "pods": [_pod_document(pod, stats, rates, cpu_and_memory_only) for pod in stats.pods],
    }


def _node_document(name: str, stats: NodeStats, rates: CpuRates, cpu_and_memory_only: bool) -> Document:
    time = _format_timestamp(stats.at)
    machine = stats.machine
    document: Document = {
        "nodeName": name,
        "systemContainers": _system_containers(stats, rates),
        "startTime": _format_timestamp(machine.boot_time),
        "cpu": _cpu(time, rates.get("", 0), machine.cpu),
        "memory": {"time": time, "availableBytes": machine.available, **_memory_usage(machine)},
    }
    if cpu_and_memory_only:
        return document
    document["network"] = _network(time, machine.interfaces, machine.default_interface)
    if stats.node_fs is not None:
        document["fs"] = _filesystem(time, stats.node_fs)
    if stats.image_fs is not None:
        image_fs = _filesystem(time, stats.image_fs)
        document["runtime"] = {"imageFs": image_fs, "containerFs": image_fs}
    document["rlimit"] = {"time": time, "maxpid": machine.tasks_limit, "curproc": machine.tasks}
    document["swap"] = {
        "time": time,
        "swapAvailableBytes": machine.total_swap - machine.swap,
        "swapUsageBytes": machine.swap,
    }
    return document


def _system_containers(stats: NodeStats, rates: CpuRates) -> list[Document]:
    if stats.all_pods is None:
        return []
    time = _format_timestamp(stats.at)
    path, usage = stats.all_pods
    return [{"name": "pods", "cpu": _cpu(time, rates.get(path, 0), usage.cpu), "memory": _memory(time, usage)}]


def _pod_document(pod: PodStats, stats: NodeStats, rates: CpuRates, cpu_and_memory_only: bool) -> Document:
    meta = pod.pod.metadata
    time = _format_timestamp(pod.at)
    first_container = pod.sandbox or pod.containers[0]
    document: Document = {
        "podRef": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
        "startTime": pod.pod.status.start_time or _format_start(first_container.container.started_at),
        "containers": [
            _container_document(container, pod, stats, rates, cpu_and_memory_only) for container in pod.containers
        ],
        "cpu": _cpu(time, rates.get(meta.uid, 0), pod.usage.cpu),
        "memory": _memory(time, pod.usage),
    }
    if cpu_and_memory_only:
        return document
    document["swap"] = {"time": time, "swapUsageBytes": pod.usage.swap}
    document["process_stats"] = {"process_count": pod.usage.tasks}
    if pod.interfaces is not None:
        document["network"] = _network(time, pod.interfaces, pod.interfaces[0].name if pod.interfaces else "")
    volumes: list[Document] = []
    if pod.disk is not None and stats.node_fs is not None:
        document["ephemeral-storage"] = _ephemeral_storage(pod.disk, stats.node_fs)
        volumes += _pod_volumes(pod.disk, stats.node_fs)
    document["volume"] = [*volumes, *_claim_volumes(pod)]
    return document


def _ephemeral_storage(disk: PodDiskUsage, node_fs: FilesystemStats) -> Document:
    """Return the usage of writable layers, logs, volumes on disk and managed files."""
    volumes_on_disk = [usage for name, usage in disk.volumes.items() if name not in disk.memory_filesystems]
    total = _sum((*disk.rootfs.values(), *disk.logs.values(), *volumes_on_disk, disk.managed_files))
    return _filesystem(_format_timestamp(disk.at), node_fs, total)


def _pod_volumes(disk: PodDiskUsage, node_fs: FilesystemStats) -> list[Document]:
    """Return the usage of the volumes that belong to the pod."""
    time = _format_timestamp(disk.at)
    return [
        {**_filesystem(time, disk.memory_filesystems.get(name, node_fs), disk.volumes[name]), "name": name}
        for name in sorted(disk.volumes)
    ]


def _claim_volumes(pod: PodStats) -> list[Document]:
    """Return the usage of PersistentVolumeClaims: that of their whole file system, which others may use, too."""
    claims = {volume.name: volume.persistent_volume_claim for volume in pod.pod.spec.volumes}
    documents = []
    for name, filesystem in sorted(pod.claims.items()):
        claim = claims.get(name)
        if claim is not None:
            reference = {"name": claim.claim_name, "namespace": pod.pod.metadata.namespace}
            document = _filesystem(_format_timestamp(pod.at), filesystem)
            documents.append({**document, "name": name, "pvcRef": reference})
    return documents


def _container_document(
    stats: ContainerStats, pod: PodStats, node: NodeStats, rates: CpuRates, cpu_and_memory_only: bool
) -> Document:
    time = _format_timestamp(stats.at)
    container_id = stats.container.id
    document: Document = {
        "name": stats.container.name,
        "startTime": _format_start(stats.container.started_at),
        "cpu": _cpu(time, rates.get(container_id, 0), stats.usage.cpu),
        "memory": _memory(time, stats.usage),
    }
    if cpu_and_memory_only:
        return document
    document["swap"] = {"time": time, "swapUsageBytes": stats.usage.swap}
    if pod.disk is not None and node.image_fs is not None:
        scan_time = _format_timestamp(pod.disk.at)
        if container_id in pod.disk.rootfs:
            document["rootfs"] = _filesystem(scan_time, node.image_fs, pod.disk.rootfs[container_id])
        if container_id in pod.disk.logs:
            document["logs"] = _filesystem(scan_time, node.image_fs, pod.disk.logs[container_id])
    return document


# --- parts ------------------------------------------------------------------------------------------------------------


def _cpu(time: str, rate: int, used: int) -> Document:
    return {"time": time, "usageNanoCores": rate, "usageCoreNanoSeconds": used}


def _memory(time: str, usage: CgroupUsage) -> Document:
    available = {} if usage.available is None else {"availableBytes": usage.available}
    return {"time": time, **available, **_memory_usage(usage)}


def _memory_usage(usage: CgroupUsage | MachineStats) -> Document:
    return {
        "usageBytes": usage.memory,
        "workingSetBytes": usage.working_set,
        "rssBytes": usage.rss,
        "pageFaults": usage.page_faults,
        "majorPageFaults": usage.major_faults,
    }


def _network(time: str, interfaces: tuple[NetworkInterface, ...], default_interface: str) -> Document:
    documents = [
        {
            "name": interface.name,
            "rxBytes": interface.rx_bytes,
            "rxErrors": interface.rx_errors,
            "txBytes": interface.tx_bytes,
            "txErrors": interface.tx_errors,
        }
        for interface in interfaces
    ]
    default = next((document for document in documents if document["name"] == default_interface), {})
    return {"time": time, **default, "interfaces": documents}


def _filesystem(time: str, filesystem: FilesystemStats, usage: DiskUsage | None = None) -> Document:
    """Return a file system with the given usage, by default that of the whole file system."""
    size, inodes = usage or DiskUsage(filesystem.used, filesystem.inodes - filesystem.inodes_free)
    return {
        "time": time,
        "availableBytes": filesystem.available,
        "capacityBytes": filesystem.capacity,
        "usedBytes": size,
        "inodesFree": filesystem.inodes_free,
        "inodes": filesystem.inodes,
        "inodesUsed": inodes,
    }


def _sum(usages: Iterable[DiskUsage]) -> DiskUsage:
    usages = list(usages)
    return DiskUsage(sum(usage.size for usage in usages), sum(usage.inodes for usage in usages))


def _format_timestamp(seconds: float) -> str:
    return times.format_time(datetime.fromtimestamp(seconds, UTC))


def _format_start(started_at: datetime | None) -> str | None:
    return None if started_at is None else times.format_time(started_at)
