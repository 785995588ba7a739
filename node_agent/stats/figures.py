"""What was seen at one look: of the machine, of each pod and of each container. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from api.objects import Pod
from node_agent.garbage import Space
from node_agent.observed import Container, PodContainers
from node_agent.stats.machine import Link, Machine
from node_agent.stats.uses import Use


@dataclass(frozen=True, slots=True)
class KnownPod:
    """A pod that is here, with its containers as they were last seen."""

    pod: Pod
    seen: PodContainers


class Taken(NamedTuple):
    """What is taken of a disk: bytes and inodes."""

    size: int = 0
    inodes: int = 0


@dataclass(frozen=True, slots=True)
class PodDisk:
    """What a pod takes of disks, as of `at` (seconds since 1970): what containers have written and logged, by id, and
    volumes that are its own, by name; of those in memory also the file systems.
    """

    at: float = 0.0
    written: Mapping[str, Taken] = field(default_factory=dict)
    logs: Mapping[str, Taken] = field(default_factory=dict)
    volumes: Mapping[str, Taken] = field(default_factory=dict)
    memory: Mapping[str, Space] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ContainerFigures:
    """A container that runs; `group` is the path of its control group, `at` when it was looked at."""

    container: Container
    group: str
    use: Use
    at: float


@dataclass(frozen=True, slots=True)
class PodFigures:
    """A pod of which something runs. `group` is empty where it has no control group of its own.

    `links` are None where it has the node's. `claims` are the file systems of its claims, by the volume's name.
    """

    pod: Pod
    group: str
    use: Use
    at: float
    containers: tuple[ContainerFigures, ...] = ()
    sandbox: ContainerFigures | None = None
    links: tuple[Link, ...] | None = None
    disk: PodDisk | None = None
    claims: Mapping[str, Space] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Figures:
    """One look, at `at` (seconds since 1970). `everyone` is what all pods use, with the path of their group.

    `node_disk` has the agent's state, `image_disk` what Docker keeps.
    """

    at: float
    machine: Machine
    pods: tuple[PodFigures, ...] = ()
    everyone: tuple[str, Use] | None = None
    node_disk: Space | None = None
    image_disk: Space | None = None


def cpu_times(figures: Figures) -> dict[str, int]:
    """What rates are made from: the machine by the empty name, pods by their uid, containers by their id."""
    times = {"": figures.machine.cpu}
    if figures.everyone is not None:
        times[figures.everyone[0]] = figures.everyone[1].cpu
    for pod in figures.pods:
        times[pod.pod.metadata.uid] = pod.use.cpu
        times |= {one.container.id: one.use.cpu for one in pod.containers}
    return times


def nano_cores(before: int, after: int, seconds: float) -> int:
    """Of a CPU time in nanoseconds, how much of a core it takes in billionths; one that went back has begun anew."""
    return int((after - before if after >= before else after) / seconds) if seconds > 0 else 0
