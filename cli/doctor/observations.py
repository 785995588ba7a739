"""What is observed of a host, one value for each subject, and what the checks find. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple


class Level(StrEnum):
    """How bad a finding is. Only problems make the exit code 1."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """A result of a check: one sentence with what was found, and the command that mends it; empty if all is well."""

    check: str
    level: Level
    found: str
    command: str = ""


class NotObserved(Exception):
    """Something that could not be looked at. `str(error)` is a sentence, `command` shows more or mends it."""

    def __init__(self, found: str, command: str = "", level: Level = Level.WARNING) -> None:
        super().__init__(found)
        self.command = command
        self.level = level


@dataclass(frozen=True, slots=True)
class Configuration:
    """The configuration of one daemon: its file, and the problems that the daemon itself reports (`--check`)."""

    daemon: str
    file: str
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unit:
    """A systemd unit, as systemctl shows it."""

    name: str
    load: str = "loaded"
    active: str = "active"
    sub: str = "running"
    enabled: str = "enabled"
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class Readiness:
    """The answer of a daemon to /readyz: `problem` is empty if it is ready."""

    daemon: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Kernel:
    """The kernel of the host."""

    release: str


@dataclass(frozen=True, slots=True)
class OpenVSwitch:
    """Open vSwitch: version of the running switch, and the errors of its ports by name."""

    version: str
    port_errors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Datapath:
    """The datapath of br0. `setting` is datapathType, `found` the type of br0 (empty: there is no br0).

    `has_module` is whether the kernel's module is loaded, `module_file` whether there is one to load. `underlay` is the
    link with the node's address, `underlay_bridge` the type of datapath if that link is a bridge of Open vSwitch.
    """

    setting: str
    found: str
    has_module: bool
    module_file: bool
    underlay: str = ""
    underlay_bridge: str = ""


@dataclass(frozen=True, slots=True)
class ForwardChain:
    """A base chain for forwarded packets: the firewall, its policy, and whether rules of it accept packets of tun0."""

    program: str
    family: str
    table: str
    name: str
    policy: str
    accepts_pods: bool


@dataclass(frozen=True, slots=True)
class Docker:
    """Docker's answer to /info, and the options of dockerd. `iptables` is None where they cannot be read."""

    version: str
    storage_driver: str
    cgroup_driver: str
    live_restore: bool
    root: str = "/var/lib/docker"
    rootless: bool = False
    iptables: bool | None = None
    options_problem: str = ""


@dataclass(frozen=True, slots=True)
class Images:
    """The sandbox image, and whether Docker has it."""

    pause: str
    found: bool


@dataclass(frozen=True, slots=True)
class Cgroups:
    """The version of the cgroups, and the controllers of the root cgroup."""

    version: int
    controllers: frozenset[str]


@dataclass(frozen=True, slots=True)
class Sysctls:
    """Values of sysctls; those that do not exist are missing."""

    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Clock:
    """Seconds by which this host's clock is ahead of the master's; None on the master.

    `synchronized` is what the kernel says; None if it does not say.
    """

    ahead_seconds: float | None
    synchronized: bool | None


@dataclass(frozen=True, slots=True)
class CertificateEnd:
    """The end of a certificate. `mend` is the command that renews it."""

    file: str
    end: datetime
    mend: str


@dataclass(frozen=True, slots=True)
class Certificates:
    """The certificates of this host, at the moment `now`."""

    now: datetime
    ends: tuple[CertificateEnd, ...]


@dataclass(frozen=True, slots=True)
class Disk:
    """A directory, and the bytes of its file system."""

    path: str
    total: int
    free: int


@dataclass(frozen=True, slots=True)
class Store:
    """The master's store: its file and its bytes, and the disk on which it is."""

    file: str
    size: int
    disk: Disk


class Port(NamedTuple):
    """A port that was connected to: `who` says whose it is, `problem` is empty if it answered."""

    who: str
    address: str
    port: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports that were connected to."""

    ports: tuple[Port, ...]


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer of the tunnels. `small` and `full` are whether packets of the smallest size and of the MTU came back.

    `host_answers` is whether the peer's host answers beside the tunnel.
    """

    name: str
    address: str
    small: bool
    full: bool
    host_answers: bool = True


@dataclass(frozen=True, slots=True)
class Tunnels:
    """The tunnels to some of the peers: `peers` of `total`. `mtu` is that of pods."""

    mtu: int
    peers: tuple[Peer, ...]
    total: int


@dataclass(frozen=True, slots=True)
class NameServers:
    """The cluster's name server at `gateway`, and the upstream servers of `file`, by address: whether they answer."""

    gateway: str
    cluster_problem: str
    file: str
    upstream: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NodeSummary:
    """A Node object: whether it is ready, and the conditions that report a problem, by type."""

    name: str
    ready: bool
    reason: str
    problems: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of the cluster."""

    nodes: tuple[NodeSummary, ...]
