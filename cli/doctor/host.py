"""Where the daemons of this host have their files: their settings, as far as the checks need them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from cli.doctor.observations import Configuration, NotObserved

CONFIG = Path("/etc/podlane")
MASTER, SDN, AGENT = "podlane-master", "podlane-sdn", "podlane-node-agent"
CHECK_SECONDS = 30.0
"""Time in which a daemon judges its configuration."""

FILES = {MASTER: "master.yaml", SDN: "sdn.yaml", AGENT: "node-agent.yaml"}
"""The configuration files of the daemons. A daemon belongs to this host if its file is there."""


class MasterSettings(msgspec.Struct, frozen=True, rename="camel"):
    """Settings of the master; the defaults are its own."""

    advertise_address: str = "10.245.2.2"
    port: int = 8443
    state_dir: str = "/var/lib/podlane/master"
    admin_kubeconfig: str = ""
    kubeconfig: str = ""

    @property
    def administrator(self) -> str:
        """The administrator's kubeconfig, or that of the cluster beside which the network controllers run."""
        return self.kubeconfig or self.admin_kubeconfig or f"{self.state_dir}/admin.kubeconfig"


class SdnSettings(msgspec.Struct, frozen=True, rename="camel"):
    """Settings of the sdn daemon; the defaults are its own."""

    node_name: str = ""
    node_ip: str = ""
    kubeconfig: str = "/etc/podlane/node.kubeconfig"
    socket: str = "/run/podlane/sdn.sock"
    ovs_rundir: str = "/var/run/openvswitch"
    datapath_type: str = "auto"
    cluster_domain: str = "cluster.local"
    resolv_conf: str = "/etc/resolv.conf"
    health_address: str = "127.0.0.1:10249"


class AgentSettings(msgspec.Struct, frozen=True, rename="camel"):
    """Settings of the node agent; the defaults are its own."""

    node_name: str = ""
    node_ip: str = ""
    kubeconfig: str = "/etc/podlane/node.kubeconfig"
    state_dir: str = "/var/lib/podlane/node-agent"
    docker_socket: str = "/var/run/docker.sock"
    network: str = "sdn"
    pause_image: str = "podlane/pause"
    port: int = 10250
    health_address: str = "127.0.0.1:10248"


@dataclass(frozen=True, slots=True)
class Host:
    """The daemons that are configured on this host; None for those that are not.

    `with_units` is whether systemd runs them, `has_uplink` whether a unit keeps the bridge of the network card.
    """

    master: MasterSettings | None
    sdn: SdnSettings | None
    agent: AgentSettings | None
    configurations: tuple[Configuration, ...] = ()
    with_units: bool = True
    has_uplink: bool = False

    @property
    def daemons(self) -> tuple[str, ...]:
        """The names of the daemons."""
        return tuple(each.daemon for each in self.configurations)

    @property
    def node_kubeconfigs(self) -> tuple[str, ...]:
        """The kubeconfigs of the node's daemons."""
        named = [each.kubeconfig for each in (self.sdn, self.agent) if each is not None]
        return tuple(dict.fromkeys(named))


S = TypeVar("S", bound=msgspec.Struct)


def read_settings(kind: type[S], document: object) -> S:
    """Return the settings of a document. A value of a wrong type counts as absent: the daemon has reported it."""
    given: dict[str, Any] = document if isinstance(document, dict) else {}
    settings = kind()
    for field in msgspec.structs.fields(kind):
        with contextlib.suppress(msgspec.ValidationError):
            if field.encode_name in given:
                value = msgspec.convert(given[field.encode_name], field.type)
                settings = msgspec.structs.replace(settings, **{field.name: value})
    return settings


async def read_host(config: Path, seconds: float = CHECK_SECONDS) -> Host:
    """Return the daemons of this host, whose configuration files are in `config`. Raises NotObserved without any."""
    there = _daemons(config)
    if not there:
        names = ", ".join(FILES.values())
        raise NotObserved(
            f"{config} has none of {names}: this host is no node and no master",
            "make install-node  # or install-master, in a clone; for a lab: podlane lab doctor",
        )
    answers = await asyncio.gather(*(_ask(daemon, config / FILES[daemon], seconds) for daemon in there))
    documents = dict(zip(there, (document for _, document in answers), strict=True))
    return Host(
        master=read_settings(MasterSettings, documents[MASTER]) if MASTER in documents else None,
        sdn=read_settings(SdnSettings, documents[SDN]) if SDN in documents else None,
        agent=read_settings(AgentSettings, documents[AGENT]) if AGENT in documents else None,
        configurations=tuple(configuration for configuration, _ in answers),
        with_units=_runs_systemd(config),
        has_uplink=_has_uplink(config),
    )


def _daemons(config: Path) -> list[str]:
    return [daemon for daemon, name in FILES.items() if (config / name).exists()]


def _has_uplink(config: Path) -> bool:
    return (config / "uplink.conf").exists()


def _runs_systemd(config: Path) -> bool:
    return config == CONFIG and Path("/run/systemd/system").exists()


async def _ask(daemon: str, file: Path, seconds: float) -> tuple[Configuration, object]:
    """Return what a daemon says of its configuration, and the settings in force; those of the file if it says no."""
    command = [str(Path(sys.executable).parent / daemon), "--config", str(file), "--check"]
    if daemon == MASTER and file.parent == CONFIG and os.getuid() == 0 and _is_user(MASTER):
        # The master runs as a user of its own, who may not read what root reads.
        command = ["runuser", "-u", MASTER, "--", *command]
    try:
        output = await run(command, seconds)
    except Failed as error:
        lines = [line.removeprefix(f"{daemon}: ") for line in error.output.splitlines() if line.strip()]
        return Configuration(daemon, str(file), tuple(lines) or ("is not accepted",)), _document(file)
    except NotObserved as error:
        return Configuration(daemon, str(file), (str(error),)), _document(file)
    return Configuration(daemon, str(file)), yaml.safe_load(output)


def _is_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _document(file: Path) -> object:
    try:
        return yaml.safe_load(file.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return None  # The daemon has said what is wrong with the file.


class Failed(NotObserved):
    """A program that ended with an error. `output` is what it has printed as errors."""

    def __init__(self, command: Sequence[str], output: str) -> None:
        first = next((line for line in output.splitlines() if line.strip()), "it printed no reason")
        super().__init__(f"{' '.join(command)} failed: {first[:300]}", " ".join(command))
        self.output = output


MAX_OUTPUT = 16 << 20


async def run(command: Sequence[str], seconds: float, limit: int = MAX_OUTPUT) -> str:
    """Run a program, and return at most `limit` bytes of its output. Raises NotObserved, and Failed if it fails."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
    except OSError as error:
        raise NotObserved(
            f"{command[0]} cannot be run: {error.strerror}", f"apt-file search bin/{command[0]}"
        ) from None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(seconds):
            output, errors = await asyncio.gather(_read(process.stdout, limit), _read(process.stderr, 1 << 16))
            code = await process.wait()
    except TimeoutError:
        raise NotObserved(f"{' '.join(command)} did not end within {seconds:g} s", " ".join(command)) from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if code:
        raise Failed(command, errors)
    return output


async def _read(stream: asyncio.StreamReader, limit: int) -> str:
    """Return the first bytes of a stream, and read it to its end."""
    kept = bytearray()
    while data := await stream.read(1 << 16):
        kept += data[: max(limit - len(kept), 0)]
    return kept.decode(errors="replace")
