"""A host that joins: real files in a directory, and an agent that gets a certificate of a real master and registers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path

import yaml

from api.client.client import AlreadyExists, Client
from api.core.node import Node
from api.meta.types import ObjectMeta
from cli.join.checks import Link, Route
from cli.join.host import Host, HostError, UnitState
from node_agent.certificates.client import load_kubeconfig
from node_agent.config import Settings

ADDRESS = "10.245.7.7"


class KilledError(BaseException):
    """Stands for SIGKILL: nothing that the command does afterwards runs."""


class JoiningHost(Host):
    """A host whose programs are this object's state. The begin of call `killed_at` that changes something ends it."""

    def __init__(self, root: Path, address: str = ADDRESS) -> None:
        super().__init__(root)
        self.address = address
        self.killed_at = 0
        self.changes: list[str] = []
        self.images: set[str] = set()
        self.units: dict[str, UnitState] = {}
        self.problems: list[str] = []
        self.broken: dict[str, str] = {}
        """Unit → why it does not start."""
        self.reports_ready = True
        self._agents: list[threading.Thread] = []
        for name in ("sdn", "node-agent"):
            text = Path(__file__).resolve().parents[3].joinpath("systemd", f"{name}.yaml").read_text()
            self.write(f"/etc/podlane/{name}.yaml", text, 0o644)
        self.changes.clear()

    def snapshot(self) -> tuple[object, ...]:
        """Return everything that a join can change."""
        files = {
            str(path.relative_to(self.path("/"))): (path.read_bytes(), path.stat().st_mode)
            for path in self.path("/").rglob("*")
            if path.is_file() and path.name != "podlane-join.lock"
        }
        running = {unit: state for unit, state in self.units.items() if state.is_active or state.is_enabled}
        return files, running, frozenset(self.images)

    def stop(self) -> None:
        """Wait until the agents of this host have ended."""
        for agent in self._agents:
            agent.join(30.0)
            assert not agent.is_alive()

    def _change(self, what: str) -> None:
        self.changes.append(what)
        if len(self.changes) == self.killed_at:
            raise KilledError

    def is_root(self) -> bool:
        return True

    def hostname(self) -> str:
        return "debian"

    def missing(self) -> Iterator[str]:
        yield from self.problems

    def not_running(self, docker_socket: str, ovs_rundir: str) -> Iterator[str]:
        yield from ()

    def links(self) -> list[Link]:
        return [Link("lo", IPv4Interface("127.0.0.1/8")), Link("eth0", IPv4Interface(f"{self.address}/24"))]

    def routes(self) -> list[Route]:
        return [Route(IPv4Network("0.0.0.0/0"), "eth0"), Route(IPv4Interface(f"{self.address}/24").network, "eth0")]

    def source_address(self, server: str, port: int) -> IPv4Address:
        return IPv4Address(self.address)

    def write(self, name: str, text: str, mode: int = 0o600) -> None:
        self._change(f"write {name}")
        super().write(name, text, mode)

    def remove(self, name: str) -> None:
        self._change(f"remove {name}")
        super().remove(name)

    def can_make_sandbox_image(self) -> bool:
        return True

    def has_image(self, docker_socket: str, image: str) -> bool:
        return image in self.images

    def load_sandbox_image(self, docker_socket: str) -> None:
        self._change("load image")
        self.images.add("podlane/pause")

    def remove_image(self, docker_socket: str, image: str) -> None:
        self.images.discard(image)

    def unit_state(self, unit: str) -> UnitState:
        return self.units.get(unit, UnitState(is_enabled=False, is_active=False))

    def start(self, unit: str) -> None:
        self._change(f"start {unit}")
        if unit in self.broken:
            raise HostError(f"systemctl restart {unit}: {self.broken[unit]}")
        self.units[unit] = UnitState(is_enabled=True, is_active=True)
        if unit == "podlane-node-agent.service":
            self._agents.append(threading.Thread(target=lambda: asyncio.run(self._agent()), daemon=True))
            self._agents[-1].start()

    def restore_unit(self, unit: str, state: UnitState) -> None:
        self.units[unit] = state

    def unit_problem(self, unit: str) -> str:
        return ""

    def reset(self) -> None:
        for unit in self.units:
            self.units[unit] = UnitState(is_enabled=False, is_active=False)

    async def _agent(self) -> None:
        """Do what the agent does when it starts: get a certificate, register, report."""
        found = yaml.safe_load(self.read("/etc/podlane/node-agent.yaml"))
        settings = Settings(
            node_name=found["nodeName"],
            node_ip=found["nodeIp"],
            kubeconfig=str(self.path(found["kubeconfig"])),
            bootstrap_kubeconfig=str(self.path(found["bootstrapKubeconfig"])),
            state_dir=str(self.path("/state")),
        )
        ready = {"type": "Ready", "status": "True" if self.reports_ready else "False", "message": "no network yet"}
        address = {"type": "InternalIP", "address": settings.node_ip}
        async with Client(await load_kubeconfig(settings)) as client:
            with contextlib.suppress(AlreadyExists):
                await client.create(Node(metadata=ObjectMeta(name=settings.node_name)))
            status = {"addresses": [address], "conditions": [ready]}
            await client.patch_status(Node, settings.node_name, "", {"status": status})
