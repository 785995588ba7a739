"""Somebody who has a bare Debian and a clone of this repository, and types what README says."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from ipaddress import IPv4Network

import pytest

from tests.testbed.documents import INSTALLATION, NEWCOMER, PACKAGES, refusal, runnable, scripts, sections
from tests.testbed.hosts.machine import ENVIRONMENT, Machine
from tests.testbed.hosts.repository import ON_MACHINES
from tests.testbed.hosts.site import SOURCE, UNDERLAY, Site, copy_clone, machine, start_uplink, write_underlay

DOCUMENTED = IPv4Network("10.245.2.0/24")
PIP_OPTIONS = "PIP_NO_INDEX=1 PIP_FIND_LINKS=/root/wheels"


@pytest.fixture
def newcomer(place: None) -> Iterator[Machine]:
    """A machine with a clone, in memory, because the Dockers of a lab cannot keep their layers on an overlay."""
    host = machine("newcomer")
    try:
        host.start()
        host.shell(f"mkdir -p /{SOURCE}; mount -t tmpfs tmpfs /{SOURCE}")
        copy_clone(host, host.path(""))
        yield host
    finally:
        host.remove()


def bash(host: Machine, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script as root in the clone."""
    inside = ["nsenter", "-t", str(host.leader), "-m", "-u", "-i", "-n", "-p", "-C", "env", "-i", *ENVIRONMENT]
    return subprocess.run(
        [*inside, "bash", "-c", f"cd /{SOURCE}\n{script}"],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def test_every_step_of_readme_succeeds(newcomer: Machine) -> None:
    """Packages come by the network of this host, which the machine's own does not reach: they are installed before."""
    begin = time.monotonic()
    newcomer.shell(f"cd /{SOURCE}; {PIP_OPTIONS} make lab-install 2>&1", online=True)
    sys.stdout.write(f"\n{time.monotonic() - begin:6.1f} s  packages\n")
    steps = list(scripts(*sections(NEWCOMER)))
    assert steps[0][0].name == "make lab"
    assert any(refusal(command) for command, _ in steps)
    for command, script in steps:
        begin = time.monotonic()
        done = bash(newcomer, script)
        sys.stdout.write(f"{time.monotonic() - begin:6.1f} s  {command.name}\n")
        assert bool(done.returncode) == bool(refusal(command)), f"{command.text}\n{done.stdout}{done.stderr}"
        assert refusal(command) in done.stderr + done.stdout, command.text


def test_steps_of_installation(place: None) -> None:
    """A master and a node on bare machines, by the commands of install.md."""
    (to_master, to_node) = sections(INSTALLATION)
    install_master, *start_master = (command.text for command in runnable(*to_master))
    install_node, ask = (command.text for command in runnable(*to_node))
    master, node = machine("docmaster"), machine("docnode")
    try:
        for number, host in enumerate((master, node), 2):
            copy_clone(host)
            write_underlay(host, number)
            host.start()
        online(master, install_master)
        for command in start_master:
            typed(master, command)
        online(node, install_node)
        start_uplink(node)
        line = typed(master, ask).strip()
        assert line.startswith(f"podlane join https://{UNDERLAY.network_address + 2}:8443 --token ")
        typed(node, line)
        assert "Master Version: v" in typed(master, "podlane version")
        assert node.is_active("podlane-sdn")
        assert node.is_active("podlane-node-agent")
    finally:
        node.remove()
        master.remove()


def test_steps_of_packages(site: Site) -> None:
    """Both roles on a bare machine that has the repository in a folder, with the lists of Debian as they are now."""
    host = machine("docpackages")
    try:
        shutil.copytree(site.repository.layer / ON_MACHINES, host.root / ON_MACHINES)
        shutil.copy("/etc/resolv.conf", host.root / "etc/resolv.conf")
        host.write("etc/apt/apt.conf.d/yes", 'APT::Get::Assume-Yes "true";\n')
        host.start()
        for command in runnable(*sections(PACKAGES)[0]):
            text = command.text.replace("https://packages.example.org/podlane", f"file:/{ON_MACHINES}")
            host.shell(f"export DEBIAN_FRONTEND=noninteractive; cd /{ON_MACHINES}; {text} 2>&1", online=True)
        assert site.repository.current in host.run("dpkg-query", "-W", "podlane-master", "podlane-node")
        assert "podlane" in host.run("podlane", "--help")
    finally:
        host.remove()


def online(host: Machine, command: str) -> None:
    """Run a command that loads packages."""
    host.shell(f"cd /{SOURCE}; {PIP_OPTIONS} {command} 2>&1", online=True)


def typed(host: Machine, command: str) -> str:
    """Run a command with the addresses of this place. Return what it prints."""
    documented = str(DOCUMENTED.network_address).rpartition(".")[0]
    actual = str(UNDERLAY.network_address).rpartition(".")[0]
    done = bash(host, command.replace(f"{documented}.", f"{actual}."))
    assert done.returncode == 0, f"{host.name}: {command}\n{done.stdout}{done.stderr}"
    return done.stdout
