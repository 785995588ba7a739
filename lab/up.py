"""Brings a lab up, saying what it does, and shows it; a lab that is up is only shown."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import docker
import docker.errors
import requests

from api.certificates import node_kubeconfig
from api.client import Client, ClientError
from api.kubeconfig import BadKubeconfig, Kubeconfig
from api.objects import Namespace
from lab import demo, images, underlay
from lab.command import LabError, run
from lab.down import bring_down, is_up
from lab.tables import GREEN, RED, coloured
from lab.topology import MOST_NODES, OVS_SCHEMA, PLUGINS, SITE, Lab, LabNode, Site

START_SECONDS = 60.0
NEEDED = ("ip", "nsenter", "ethtool", "ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "dockerd", "nft", "catatonit")


class Progress:
    """One line for each step, with the seconds since the beginning."""

    def __init__(self) -> None:
        self._begin = time.monotonic()

    def __call__(self, text: str) -> None:
        """Say it."""
        print(f"[{time.monotonic() - self._begin:5.1f}s] {text}", flush=True)


def lab_up(state: Path, size: int, plugin: str, site: Site = SITE) -> int:
    """The command: 0 when everything is as expected, 1 when a pair of pods is not. Raises LabError."""
    _check(size, plugin)
    say = Progress()
    if is_up(site):
        lab = _running_lab(state, site)
        say(f"the lab is up: {lab.size} nodes, {lab.plugin}")
    else:
        lab = Lab(site, state.resolve(), Path(sys.executable).parent, size, plugin)
        _begin(lab, state, say)
    return asyncio.run(_finish(lab, say))


def _check(size: int, plugin: str) -> None:
    if os.geteuid():
        raise LabError("the lab makes network namespaces and runs dockerd: run it as root")
    if not 1 <= size <= MOST_NODES:
        raise LabError(f"NODES is {size}; 1 to {MOST_NODES} are accepted")
    if plugin not in PLUGINS:
        raise LabError(f"PLUGIN is {plugin!r}; {' or '.join(PLUGINS)} is accepted")
    missing = [program for program in NEEDED if shutil.which(program) is None]
    if missing:
        raise LabError(f"not installed: {', '.join(missing)}; `make lab` installs what the lab needs")


def _running_lab(state: Path, site: Site) -> Lab:
    if site.short.resolve() != state.resolve():
        raise LabError(
            f"another lab is up, with its state in {site.short.resolve()}; take it down first (make lab-down)"
        )
    size, plugin = (site.short / "lab").read_text().split()
    return Lab(site, state.resolve(), Path(sys.executable).parent, int(size), plugin)


def _begin(lab: Lab, state: Path, say: Progress) -> None:
    if state.exists() or lab.root.is_symlink():
        say("removing what an earlier lab left behind")
        bring_down(state, lab.site)
    try:
        say(f"making {lab.size} nodes ({lab.plugin})")
        _make_directories(lab, state)
        underlay.make(lab)
        _start_supervisor(lab)
    except BaseException:
        bring_down(state, lab.site)
        raise


def _make_directories(lab: Lab, state: Path) -> None:
    state.mkdir(mode=0o755, parents=True)
    lab.root.symlink_to(state.resolve())
    (lab.root / "lab").write_text(f"{lab.size} {lab.plugin}\n")
    (lab.root / "master").mkdir()
    for node in lab.nodes:
        for folder in (node.ovs, node.root / "log", node.root / "manifests", node.root / "docker-run"):
            folder.mkdir(parents=True)
        run("ovsdb-tool", "create", str(node.ovs / "conf.db"), OVS_SCHEMA)


def _start_supervisor(lab: Lab) -> None:
    arguments = [lab.site.prefix, str(lab.site.underlay), str(lab.size), lab.plugin]
    with (lab.root / "supervisor.log").open("ab") as log:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "lab.supervisor", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )
    (lab.root / "supervisor.pid").write_text(f"{supervisor.pid}\n")


async def _finish(lab: Lab, say: Progress) -> int:
    loading = [asyncio.to_thread(_load_images, node) for node in lab.nodes]
    images_loaded = asyncio.gather(*loading)
    administrator = await _master_answers(lab, say)
    async with Client(administrator) as client:
        for node in lab.nodes:
            if not node.kubeconfig.exists():
                text = await node_kubeconfig(client, administrator, node.name)
                node.kubeconfig.touch(mode=0o600)
                node.kubeconfig.write_text(text)
        await images_loaded
        say("images podlane/pause and podlane/toolbox are on every node")
        await demo.until(lambda: demo.nodes_ready(client), say, lab.size, "nodes ready")
        await demo.apply(client, lab)
        pods = lab.size * len(demo.PROJECTS)
        await demo.until(lambda: demo.pods_running(client), say, pods, "demo pods running")
        matrix = await demo.show(client, lab)
    print("\nWho reaches whom (rows send, columns receive; + answered, . silent as it should be, ! not as expected):\n")
    print(matrix.text())
    return _verdict(matrix.surprises(), say)


def _verdict(surprises: tuple[str, ...], say: Progress) -> int:
    print()
    for surprise in surprises:
        print(coloured(f"not as expected: {surprise}", RED))
    if not surprises:
        say(coloured("every pair is as expected", GREEN))
    print("\n  export KUBECONFIG=$PWD/.lab/kubeconfig     then kubectl get nodes,pods -A -o wide")
    print("  make lab-down                              to take everything away again")
    return 1 if surprises else 0


async def _master_answers(lab: Lab, say: Progress) -> Kubeconfig:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            administrator = Kubeconfig.load(lab.kubeconfig)
            async with Client(administrator) as client:
                await client.get(Namespace, "default")
            say(f"the master answers at {administrator.server}")
            return administrator
        except (BadKubeconfig, ClientError) as error:
            if time.monotonic() > deadline:
                raise LabError(f"the master does not answer: {error}; see .lab/master/master.log") from None
        await asyncio.sleep(0.1)


def _load_images(node: LabNode) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not node.docker_socket.exists():
        if time.monotonic() > deadline:
            raise LabError(f"{node.name}: dockerd does not start; see .lab/{node.name}/log/dockerd.log")
        time.sleep(0.05)
    client: Any = docker.APIClient(base_url=f"unix://{node.docker_socket}", version="1.41", timeout=START_SECONDS)
    try:
        present = {tag for image in client.images() for tag in image["RepoTags"] or ()}
        if f"{images.TOOLBOX}:latest" not in present:
            images.load(client)
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        raise LabError(f"{node.name}: {error}; see .lab/{node.name}/log/dockerd.log") from None
    finally:
        client.close()


def show_lab(state: Path) -> int:
    """Show the lab that is up. Raises LabError when none is."""
    if not is_up(SITE):
        raise LabError("no lab is up; `make lab` brings one up")
    return asyncio.run(_show(_running_lab(state, SITE)))


async def _show(lab: Lab) -> int:
    async with Client(Kubeconfig.load(lab.kubeconfig)) as client:
        matrix = await demo.show(client, lab)
    print("\n" + matrix.text())
    return 1 if matrix.surprises() else 0
