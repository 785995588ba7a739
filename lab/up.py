"""Brings a lab up and shows it; a lab that is up is only shown."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from ipaddress import IPv4Address
from pathlib import Path
from types import FrameType

import docker.errors
import psutil
import requests

from api.client.bootstrap import node_kubeconfig
from api.client.client import Client, ClientError
from api.client.kubeconfig import BadKubeconfig, Kubeconfig
from api.core.node import Namespace
from lab import demo, images, underlay, uplink, users
from lab.down import has_traces, is_up, remove
from lab.process import BUSY, LabError, Progress, exclusive, is_held, run
from lab.state import read_lab, write_lab
from lab.topology import (
    MARK,
    MAX_NODES,
    OVS_SCHEMA,
    PLUGINS,
    REGISTRY,
    REGISTRY_NAMES,
    SITE,
    SIZE,
    Lab,
    LabNode,
    Site,
    docker_settings,
    processes,
    proxy_exceptions,
)
from reconcile import atomic_file
from reconcile.terminal import GREEN, RED, colored

START_SECONDS = 60.0
DOCKER_SETTINGS = Path("/etc/docker/daemon.json")
MAX_RESTARTS = 3
NEEDED = (
    "ip",
    "nsenter",
    "ethtool",
    "ovsdb-server",
    "ovs-vswitchd",
    "ovs-vsctl",
    "dockerd",
    "docker",
    "nft",
    "catatonit",
    "busybox",
    "curl",
    "bash",
)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a new lab; None is the default. `internal` and `registry` are those of `Lab`."""

    size: int | None = None
    plugin: str | None = None
    internal: bool | None = None
    registry: bool | None = None

    def applied(self, lab: Lab) -> Lab:
        """Return the lab with the options that are not None."""
        return replace(
            lab,
            size=lab.size if self.size is None else self.size,
            plugin=lab.plugin if self.plugin is None else self.plugin,
            internal=lab.internal if self.internal is None else self.internal,
            registry=lab.registry if self.registry is None else self.registry,
        )


DEFAULTS = Options()


def lab_up(state: Path, options: Options = DEFAULTS, site: Site = SITE) -> int:
    """Bring a lab up. Return 0 if the connectivity is as expected, 1 if it is not. Raises LabError.

    A lab that is up is only shown; it must have the given options.
    """
    _check(options)
    progress = Progress()
    with exclusive(site):
        if is_up(site):
            lab = _own_lab(state, site)
            _compare(lab, options)
            progress(f"the lab is up: {_count_nodes(lab)}, {lab.plugin}")
        else:
            lab = options.applied(Lab(site, state.resolve(), Path(sys.executable).parent, SIZE, PLUGINS[0]))
            _make(lab, state, progress)
    try:
        return asyncio.run(_demonstrate(lab, progress))
    except KeyboardInterrupt:
        progress("interrupted; the lab stays up, `make lab-down` takes it away")
        raise


def _check(options: Options) -> None:
    size, plugin = options.size, options.plugin
    if os.geteuid():
        raise LabError("the lab creates network namespaces and runs dockerd: run it as root")
    if size is not None and not 1 <= size <= MAX_NODES:
        raise LabError(f"NODES is {size}; 1 to {MAX_NODES} are accepted")
    if plugin is not None and plugin not in PLUGINS:
        raise LabError(f"PLUGIN is {plugin!r}; {' or '.join(PLUGINS)} is accepted")
    needed = (*NEEDED, "docker-registry") if options.registry else NEEDED
    missing = [program for program in needed if shutil.which(program) is None]
    if missing:
        raise LabError(f"not installed: {', '.join(missing)}; `make lab` installs what the lab needs")


def _compare(lab: Lab, options: Options) -> None:
    wanted = options.applied(lab)
    if wanted != lab:
        raise LabError(f"{_described(lab)} is up, not {_described(wanted)}; take it down first (make lab-down)")


def _described(lab: Lab) -> str:
    extras = [word for word, is_set in (("internal", lab.internal), ("with a registry", lab.registry)) if is_set]
    return ", ".join([f"a lab of {_count_nodes(lab)} with {lab.plugin}", *extras])


def _count_nodes(lab: Lab) -> str:
    return "1 node" if lab.size == 1 else f"{lab.size} nodes"


def _make(lab: Lab, state: Path, progress: Progress) -> None:
    """Create the lab and wait for ready nodes. On failure, remove it."""
    if has_traces(state, lab.site):
        progress("removing the remains of an earlier lab, with its objects and volumes")
        remove(state, lab.site)
    _refuse_taken_addresses(lab.site)
    if lab.registry:
        _refuse_taken_port(REGISTRY)
    try:
        with _exit_on_signals():
            progress(f"creating {_count_nodes(lab)} ({lab.plugin})")
            _make_directories(lab, state)
            underlay.make(lab)
            if not lab.internal:
                uplink.connect(lab)
            _start_supervisor(lab)
            asyncio.run(_wait_until_ready(lab, progress))
    except Exception:
        progress("it failed; removing everything")
        remove(state, lab.site, keep_logs=True)
        if state.exists():
            progress(f"its logs stay in {state}")
        raise
    except BaseException:
        progress("interrupted; removing everything")
        remove(state, lab.site)
        raise


def _refuse_taken_addresses(site: Site) -> None:
    for device, addresses in psutil.net_if_addrs().items():
        for address in addresses:
            for network in (site.underlay, site.ingress):
                if address.family == socket.AF_INET and IPv4Address(address.address) in network:
                    raise LabError(f"{device} has {address.address}, but the lab needs the whole of {network}")


def _refuse_taken_port(address: str) -> None:
    host, _, port = address.rpartition(":")
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, int(port)))
        except OSError as error:
            raise LabError(
                f"the registry of the lab cannot listen at {address}: {error.strerror}; "
                "`systemctl disable --now docker-registry` ends that of Debian's package"
            ) from None


@contextlib.contextmanager
def _exit_on_signals() -> Iterator[None]:
    """Exit with cleanup on SIGTERM and SIGHUP, as on Ctrl-C."""

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _make_directories(lab: Lab, state: Path) -> None:
    state.mkdir(mode=0o755, parents=True)
    lab.root.symlink_to(state.resolve())
    write_lab(lab)
    (lab.root / "master").mkdir()
    if lab.registry:
        _configure_registry(lab)
    settings = json.dumps(docker_settings(_machine_docker_settings()))
    lab.command.parent.mkdir()
    lab.command.symlink_to(lab.bin_dir / "podlane")
    users.make_passwords(lab)
    for node in lab.nodes:
        for folder in (node.ovs, node.root / "log", node.root / "manifests", node.root / "docker-run"):
            folder.mkdir(parents=True)
        (node.root / "docker.json").write_text(settings)
        registries = f"localRegistries: {json.dumps(REGISTRY_NAMES)}\n" if lab.registry else ""
        (node.root / "node-agent.yaml").write_text(f"# Further settings of this node's agent.\n{registries}")
        run("ovsdb-tool", "create", str(node.ovs / "conf.db"), OVS_SCHEMA)


def _machine_docker_settings() -> dict[str, object]:
    try:
        settings = json.loads(DOCKER_SETTINGS.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise LabError(f"{DOCKER_SETTINGS}: {error}; a JSON object is accepted") from None
    return settings if isinstance(settings, dict) else {}


def _configure_registry(lab: Lab) -> None:
    """Write the configuration of the registry (https://distribution.github.io/distribution/about/configuration/)."""
    folder = lab.root / "registry"
    folder.mkdir()
    storage = {"filesystem": {"rootdirectory": f"{folder}/images"}, "delete": {"enabled": True}}
    settings = {"version": 0.1, "log": {"level": "warn"}, "storage": storage, "http": {"addr": REGISTRY}}
    (folder / "config.yml").write_text(json.dumps(settings))


def _start_supervisor(lab: Lab) -> None:
    arguments = [lab.site.prefix, str(lab.site.underlay)]
    with (lab.root / "supervisor.log").open("ab") as log:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "lab.supervisor", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env={**os.environ, **proxy_exceptions(os.environ, lab.site), MARK: str(lab.site.run_dir)},
            start_new_session=True,
        )
    (lab.root / "supervisor.pid").write_text(f"{supervisor.pid}\n")


async def _wait_until_ready(lab: Lab, progress: Progress) -> None:
    """Wait for ready nodes. Raises LabError if a process is restarted MAX_RESTARTS times."""
    joining, dying = asyncio.create_task(_join(lab, progress)), asyncio.create_task(_watch_restarts(lab))
    try:
        done, _ = await asyncio.wait((joining, dying), return_when=asyncio.FIRST_COMPLETED)
    finally:
        joining.cancel()
        dying.cancel()
        await asyncio.gather(joining, dying, return_exceptions=True)
    for task in done:
        task.result()


async def _watch_restarts(lab: Lab) -> None:
    logs = {process.name: process.log_file for process in processes(lab)}
    while True:
        ended = Counter(re.findall(r"^\S+ (.+) ended with", (lab.root / "supervisor.log").read_text(), re.MULTILINE))
        for name, times in ended.items():
            if times >= MAX_RESTARTS:
                lines = _last_log_lines(logs.get(name, lab.root / f"{name}.log"))
                raise LabError(f"{name} has ended {times} times; its last log lines: {lines}")
        await asyncio.sleep(0.2)


async def _join(lab: Lab, progress: Progress) -> None:
    loading = [_load_images(node) for node in lab.nodes]
    administrator, _ = await asyncio.gather(_admit(lab, progress), asyncio.gather(*loading))
    async with Client(administrator) as client:
        progress("images podlane/pause and podlane/toolbox are on every node")
        await demo.until(lambda: demo.nodes_ready(client, lab), progress, lab.size, "nodes ready")


async def _admit(lab: Lab, progress: Progress) -> Kubeconfig:
    """Wait for the master, write the kubeconfig of every node, and return the administrator's."""
    administrator = await _master_answers(lab, progress)
    async with Client(administrator) as client:
        for node in lab.nodes:
            kubeconfig = await node_kubeconfig(client, administrator, node.name)
            atomic_file.write(node.kubeconfig, kubeconfig.encode())
    return administrator


async def _demonstrate(lab: Lab, progress: Progress) -> int:
    async with Client(Kubeconfig.load(lab.kubeconfig)) as client:
        await demo.apply(client, lab)
        await users.log_in(client, lab)
        pods = lab.size * len(demo.PROJECTS)
        await demo.until(lambda: demo.pods_running(client), progress, pods, "demo pods running")
        matrix = await demo.show(client, lab)
    refusals = await users.attempt_all(lab)
    print("\nWho reaches whom (rows send, columns receive; + answered, . silent as it should be, ! not as expected;")
    print("svc/PROJECT is the service demo of that project, called by its name):\n")
    print(matrix.text())
    print("\n" + "\n".join(refusals.lines))
    return _verdict(lab, (*matrix.unexpected(), *refusals.unexpected), progress)


def _verdict(lab: Lab, unexpected: tuple[str, ...], progress: Progress) -> int:
    print()
    for pair in unexpected:
        print(colored(f"not as expected: {pair}", RED))
    if not unexpected:
        progress(colored("every pair and every attempt is as expected", GREEN))
    print("\n  export KUBECONFIG=$PWD/.lab/kubeconfig     then kubectl get nodes,pods -A -o wide")
    print("  export PATH=$PWD/.lab/bin:$PATH            then podlane why red/red-1 blue/blue-1")
    print("  podlane lab kubeconfig --merge             makes the lab the current context of your kubeconfig")
    for user in users.USERS:
        print(
            f"  kubectl --kubeconfig .lab/users/{user}.kubeconfig -n {user} get pods   as the administrator of {user}"
        )
    print(f"  https://{lab.site.master}:8443/oauth/token/request   logs a browser in; passwords: .lab/users/*.password")
    print("  make lab-down                              to take everything away again")
    return 1 if unexpected else 0


async def _master_answers(lab: Lab, progress: Progress) -> Kubeconfig:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            administrator = Kubeconfig.load(lab.kubeconfig)
            async with Client(administrator) as client:
                await client.get(Namespace, "default")
            progress(f"the master answers at {administrator.server}")
            return administrator
        except (BadKubeconfig, ClientError) as error:
            if time.monotonic() > deadline:
                words = _last_log_lines(lab.root / "master" / "master.log")
                raise LabError(f"the master does not answer: {error}; its last log lines: {words}") from None
        await asyncio.sleep(0.1)


async def _load_images(node: LabNode) -> None:
    """Load the images of the lab. dockerd has its socket before it answers; one that ends is started again."""
    deadline = time.monotonic() + START_SECONDS
    while not node.docker_socket.exists():
        if time.monotonic() > deadline:
            raise LabError(f"{node.name}: dockerd does not start: {_last_log_lines(node.root / 'log' / 'dockerd.log')}")
        await asyncio.sleep(0.05)
    while True:
        try:
            await asyncio.to_thread(images.load, str(node.docker_socket))
            return
        except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
            is_starting = isinstance(error, requests.exceptions.ConnectionError) and time.monotonic() < deadline
            if not is_starting:
                raise LabError(f"{node.name}: {error}; see .lab/{node.name}/log/dockerd.log") from None
        await asyncio.sleep(0.5)


def _last_log_lines(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "it has said nothing")


def _own_lab(state: Path, site: Site) -> Lab:
    """Return the lab that is up; the caller holds `exclusive`. Raises LabError if its state is elsewhere."""
    if site.run_dir.resolve() != state.resolve():
        raise LabError(
            f"another lab is up, with its state in {site.run_dir.resolve()}; take it down first (make lab-down)"
        )
    return _whole_lab(site)


def running_lab(site: Site = SITE) -> Lab:
    """Return the lab that is up, wherever its state is. Raises LabError if there is none, or if it changes now."""
    if is_held(site):
        raise LabError(BUSY)
    if not is_up(site):
        crashed = "; parts of one are left: `make lab-down` removes them" if site.run_dir.is_symlink() else ""
        raise LabError(f"no lab is up{crashed}; `make lab` brings one up")
    return _whole_lab(site)


def _whole_lab(site: Site) -> Lab:
    """Return the lab that is up. Raises LabError if files are missing without which no command can use it."""
    try:
        lab = read_lab(site)
    except FileNotFoundError as error:
        raise LabError(_broken(site, error.filename)) from None
    for file in (lab.kubeconfig, *(users.password_file(lab, user) for user in users.USERS), lab.command):
        if not os.path.lexists(file):
            raise LabError(_broken(site, file))
    return lab


def _broken(site: Site, file: Path) -> str:
    missing = site.run_dir.resolve() / Path(file).relative_to(site.run_dir)
    return f"the lab is up, but its file {missing} is missing; `make lab-down` and `make lab` make another lab"


def show_lab(site: Site = SITE) -> int:
    """Show the lab that is up. Raises LabError if there is none."""
    return asyncio.run(_show(running_lab(site)))


async def _show(lab: Lab) -> int:
    async with Client(Kubeconfig.load(lab.kubeconfig)) as client:
        matrix = await demo.show(client, lab)
    print("\n" + matrix.text())
    return 1 if matrix.unexpected() else 0
