"""The host that joins: its links, units, files and images. Driver."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError, DockerException

from cli.join.checks import Link, Route
from lab.images import CATATONIT, load_pause
from reconcile import atomic_file

COMMAND_SECONDS = 120.0
UNITS = ("podlane-sdn.service", "podlane-node-agent.service")
"""The units of a node, in the order in which they start."""

INSTALL = "install podlane-node (apt), or run `make install-node` in a clone"
REMOVE_NODE = Path(sys.prefix) / "libexec" / "remove-node"
LOCK = "/run/podlane-join.lock"
COMMANDS = ("podlane-sdn", "podlane-node-agent")


class HostError(Exception):
    """A command or a file of the host failed; `str(error)` names it and says why."""


@dataclass(frozen=True, slots=True)
class FileState:
    """What a file is: its content in base64 and its mode; `content` is None if it does not exist."""

    content: str | None
    mode: int = 0o644


@dataclass(frozen=True, slots=True)
class UnitState:
    """Whether a unit starts with the host, and whether it runs."""

    is_enabled: bool
    is_active: bool


class Host:
    """This host. Files are below `root`, which only tests set."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def path(self, name: str) -> Path:
        """Return the path of a file of the host."""
        return self._root / name.lstrip("/")

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the lock of joins on this host. Raises HostError if another join has it."""
        path = self.path(LOCK)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = path.open("wb")
        except OSError as error:
            raise HostError(f"{LOCK}: {error.strerror}") from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise HostError(
                    "another `podlane join` or `podlane node reset` runs on this host; wait for it"
                ) from None
            yield

    # --- what there is ------------------------------------------------------------------------------------------------

    def is_root(self) -> bool:
        """Return whether this process may change the host."""
        return os.geteuid() == 0

    def hostname(self) -> str:
        """Return the name of the host, in lower case, as the name of a node is."""
        return socket.gethostname().lower()

    def missing(self) -> Iterator[str]:
        """Yield a sentence for each command and unit of a node that is not installed."""
        for command in COMMANDS:
            if not Path(sys.executable).with_name(command).exists():
                yield f"{command} is not in {Path(sys.executable).parent}; {INSTALL}"
        if shutil.which("systemctl") is None:
            yield "there is no systemctl; a host with systemd is accepted"
            return
        for unit in UNITS:
            if not _succeeds("systemctl", "cat", unit):
                yield f"there is no unit {unit}; {INSTALL}"

    def not_running(self, docker_socket: str, ovs_rundir: str) -> Iterator[str]:
        """Yield a sentence for each program that a node needs and that does not answer."""
        try:
            with _docker(docker_socket) as client:
                client.ping()
        except (DockerException, OSError) as error:
            yield f"Docker does not answer at {docker_socket} ({error}); start it: systemctl start docker"
        database = f"--db=unix:{ovs_rundir}/db.sock"
        if not _succeeds("ovs-vsctl", "--timeout=5", database, "get", "Open_vSwitch", ".", "_uuid") or not _succeeds(
            "ovs-appctl", "--timeout=5", "version", environment={**os.environ, "OVS_RUNDIR": ovs_rundir}
        ):
            yield f"Open vSwitch does not answer in {ovs_rundir}; start it: systemctl start openvswitch-switch"

    def links(self) -> list[Link]:
        """Return the links with IPv4 addresses. Raises HostError."""
        links: list[dict[str, Any]] = json.loads(_run("ip", "-j", "-4", "address", "show"))
        return [
            Link(str(link["ifname"]), IPv4Interface(f"{address['local']}/{address['prefixlen']}"))
            for link in links
            for address in link.get("addr_info", ())
        ]

    def routes(self) -> list[Route]:
        """Return the routes of the main table. Raises HostError."""
        routes: list[dict[str, Any]] = json.loads(_run("ip", "-j", "-4", "route", "show"))
        return [
            Route(IPv4Network("0.0.0.0/0" if route["dst"] == "default" else route["dst"]), str(route.get("dev", "")))
            for route in routes
        ]

    def source_address(self, server: str, port: int) -> IPv4Address:
        """Return the address from which this host reaches a server. Raises HostError. No packet is sent."""
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((server, port))
                return IPv4Address(probe.getsockname()[0])
        except OSError as error:
            raise HostError(f"there is no route to {server}: {error.strerror or error}") from None

    # --- files --------------------------------------------------------------------------------------------------------

    def read(self, name: str) -> str:
        """Return the text of a file, empty if there is none. Raises HostError."""
        try:
            return self.path(name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""
        except (OSError, UnicodeDecodeError) as error:
            raise HostError(f"{name}: {getattr(error, 'strerror', None) or error}; a text file is accepted") from None

    def write(self, name: str, text: str, mode: int = atomic_file.OWNER_ONLY) -> None:
        """Replace a file; one that exists keeps its mode, and a link stays a link. Raises HostError."""
        path = self.path(name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path = path.resolve()
            atomic_file.write(path, text.encode(), path.stat().st_mode & 0o777 if path.exists() else mode)
        except OSError as error:
            raise HostError(f"{name}: {error.strerror}") from None

    def remove(self, name: str) -> None:
        """Remove a file, if there is one. Raises HostError."""
        try:
            self.path(name).unlink(missing_ok=True)
        except OSError as error:
            raise HostError(f"{name}: {error.strerror}") from None

    def file_state(self, name: str) -> FileState:
        """Return what a file is now. Raises HostError."""
        path = self.path(name)
        try:
            return FileState(base64.b64encode(path.read_bytes()).decode(), path.stat().st_mode & 0o777)
        except FileNotFoundError:
            return FileState(None)
        except OSError as error:
            raise HostError(f"{name}: {error.strerror}") from None

    def restore_file(self, name: str, state: FileState) -> None:
        """Make a file what it was. Raises HostError."""
        if state.content is None:
            self.remove(name)
            return
        try:
            atomic_file.write(self.path(name).resolve(), base64.b64decode(state.content), state.mode)
        except OSError as error:
            raise HostError(f"{name}: {error.strerror}") from None

    # --- images -------------------------------------------------------------------------------------------------------

    def has_image(self, docker_socket: str, image: str) -> bool:
        """Return whether Docker has an image. Raises HostError."""
        try:
            with _docker(docker_socket) as client:
                return bool(client.images(name=image))
        except (DockerException, OSError) as error:
            raise HostError(f"Docker at {docker_socket}: {error}") from None

    def can_make_sandbox_image(self) -> bool:
        """Return whether the program of the sandbox image is installed."""
        return CATATONIT.exists()

    def load_sandbox_image(self, docker_socket: str) -> None:
        """Load the sandbox image, unless Docker has it. Raises HostError."""
        try:
            load_pause(docker_socket)
        except (DockerException, OSError) as error:
            raise HostError(f"the sandbox image was not loaded: {error}") from None

    def remove_image(self, docker_socket: str, image: str) -> None:
        """Remove an image, if Docker has it. Raises HostError."""
        try:
            with _docker(docker_socket) as client:
                client.remove_image(image)
        except APIError as error:
            if error.response is None or error.response.status_code != 404:
                raise HostError(f"image {image}: {error}") from None
        except (DockerException, OSError) as error:
            raise HostError(f"image {image}: {error}") from None

    # --- units --------------------------------------------------------------------------------------------------------

    def unit_state(self, unit: str) -> UnitState:
        """Return the state of a unit."""
        return UnitState(
            _succeeds("systemctl", "is-enabled", "--quiet", unit), _succeeds("systemctl", "is-active", "--quiet", unit)
        )

    def start(self, unit: str) -> None:
        """Start a unit, now and with the host; one that runs starts again with its settings. Raises HostError."""
        _run("systemctl", "enable", "--quiet", unit)
        _run("systemctl", "restart", unit)

    def restore_unit(self, unit: str, state: UnitState) -> None:
        """Make a unit what it was. Raises HostError."""
        if not state.is_enabled:
            _run("systemctl", "disable", "--quiet", unit)
        _run("systemctl", "restart" if state.is_active else "stop", unit)

    def unit_problem(self, unit: str) -> str:
        """Return the state of a unit that does not run; empty if it runs."""
        state = _output("systemctl", "is-active", unit).strip()
        return "" if state in {"active", "activating", "reloading"} else state or "unknown"

    def require_reset(self) -> None:
        """Return if a node is installed on this host. Raises HostError."""
        if not REMOVE_NODE.exists():
            raise HostError(f"no node is installed on this host: there is no {REMOVE_NODE}; {INSTALL}")

    def reset(self) -> None:
        """Stop the daemons of a node, and remove its pods, its network and its state. Raises HostError."""
        self.require_reset()
        _run(str(REMOVE_NODE), "--reset", seconds=600.0)


def _docker(docker_socket: str) -> contextlib.closing[Any]:
    client: Any = docker.APIClient(base_url=f"unix://{docker_socket}", version="1.41", timeout=30)
    return contextlib.closing(client)


def _run(*command: str, seconds: float = COMMAND_SECONDS) -> str:
    """Run a program and return its output. Raises HostError with its error output."""
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds)
    except FileNotFoundError:
        raise HostError(f"{command[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise HostError(f"{' '.join(command)}: did not end within {seconds:g} s") from None
    except subprocess.CalledProcessError as error:
        raise HostError(f"{' '.join(command)}: {(error.stderr or error.stdout).strip()}") from None
    return done.stdout


def _output(*command: str) -> str:
    """Return the output of a program, whatever its exit code."""
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=COMMAND_SECONDS).stdout


def _succeeds(*command: str, environment: dict[str, str] | None = None) -> bool:
    """Return whether a program is installed and exits with 0."""
    try:
        done = subprocess.run(command, check=False, capture_output=True, timeout=COMMAND_SECONDS, env=environment)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
