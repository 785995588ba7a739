"""The uplink in user space, with Open vSwitch: addresses move to the bridge, and back if the gateway is lost."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.process import run, succeeds
from lab.topology import OVS_SCHEMA
from tests.testbed.wait import wait_until

SCRIPT = Path(__file__).resolve().parents[3] / "systemd" / "uplink.sh"
HOST, GATEWAY, FAR = "10.213.7.2/24", "10.213.7.1", "198.51.100.7"


class Machine:
    """A host with a card `eth0` and a switch, and a gateway, each in a network namespace."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.name, self.gateway = f"podup-{os.getpid()}-h", f"podup-{os.getpid()}-g"
        self.state, self.config = root / "state", root / "uplink.conf"
        self.config.write_text("# The card.\nLINK=eth0\nBRIDGE=br-up\n")
        self.environment = {
            **os.environ,
            **{f"OVS_{name}": str(root) for name in ("RUNDIR", "LOGDIR", "DBDIR")},
            "UPLINK_CONFIG": str(self.config),
            "UPLINK_STATE": str(self.state),
            "UPLINK_GATEWAY_SECONDS": "2",
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def build(self) -> None:
        for namespace in (self.name, self.gateway):
            run("ip", "netns", "add", namespace)
            run("ip", "-n", namespace, "link", "set", "lo", "up")
        run("ip", "-n", self.name, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", self.gateway)
        for namespace in (self.name, self.gateway):
            run("ip", "netns", "exec", namespace, "ethtool", "-K", "eth0", "tx", "off")
            run("ip", "-n", namespace, "link", "set", "eth0", "up")
        run("ip", "-n", self.gateway, "addr", "add", f"{GATEWAY}/24", "dev", "eth0")
        run("ip", "-n", self.gateway, "addr", "add", f"{FAR}/32", "dev", "lo")
        self.give_address()
        run("ovsdb-tool", "create", str(self.root / "conf.db"), OVS_SCHEMA)
        self._start("ovsdb-server", str(self.root / "conf.db"), f"--remote=punix:{self.root}/db.sock")
        wait_until((self.root / "db.sock").exists, "ovsdb-server")
        run("ovs-vsctl", "--no-wait", "init", environment=self.environment)
        self.start_switch()

    def give_address(self) -> None:
        run("ip", "-n", self.name, "addr", "add", HOST, "dev", "eth0")
        run("ip", "-n", self.name, "route", "add", "default", "via", GATEWAY, "dev", "eth0")
        run("ip", "-n", self.name, "route", "add", "192.0.2.0/24", "via", GATEWAY, "dev", "eth0")

    def start_switch(self) -> None:
        self._start("ovs-vswitchd", f"unix:{self.root}/db.sock")
        wait_until((self.root / "ovs-vswitchd.pid").exists, "ovs-vswitchd")

    def _start(self, program: str, *words: str) -> None:
        command = (
            "ip",
            "netns",
            "exec",
            self.name,
            program,
            *words,
            "--pidfile",
            f"--log-file={self.root}/{program}.log",
        )
        self._processes[program] = subprocess.Popen(
            command, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def kill_switch(self) -> None:
        self._processes["ovs-vswitchd"].kill()
        self._processes["ovs-vswitchd"].wait()
        (self.root / "ovs-vswitchd.pid").unlink()

    def boot(self) -> None:
        """Take away what a boot takes away: the device of the bridge, with addresses and routes."""
        self.kill_switch()
        run("ip", "-n", self.name, "link", "del", "br-up")

    def remove(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()
        for namespace in (self.name, self.gateway):
            run("ip", "netns", "del", namespace)

    def uplink(self, action: str = "up") -> subprocess.CompletedProcess[str]:
        command = ("ip", "netns", "exec", self.name, str(SCRIPT), action)
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False, timeout=60)

    def links(self) -> str:
        return run("ip", "-n", self.name, "-o", "link")

    def network(self, device: str) -> tuple[set[str], set[str]]:
        """Return addresses and routes of a device."""
        addresses = run("ip", "-n", self.name, "-o", "-4", "addr", "show", "dev", device).splitlines()
        routes = run("ip", "-n", self.name, "-4", "route", "show", "dev", device).splitlines()
        return {line.split()[3] for line in addresses}, {" ".join(line.split()[:3]) for line in routes}

    def reaches(self, target: str) -> bool:
        return succeeds("ip", "netns", "exec", self.name, "ping", "-c", "1", "-W", "2", target)


MOVED = ({HOST}, {f"default via {GATEWAY}", f"192.0.2.0/24 via {GATEWAY}", "10.213.7.0/24 proto kernel"})
NONE: tuple[set[str], set[str]] = (set(), set())


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    try:
        made.build()
        assert made.reaches(FAR)
        yield made
    finally:
        made.remove()


def test_addresses_and_routes_move_to_the_bridge_and_back(machine: Machine) -> None:
    done = machine.uplink()
    assert done.returncode == 0, done.stderr
    assert machine.network("br-up") == MOVED
    assert machine.network("eth0") == NONE
    assert machine.reaches(FAR)
    again = machine.uplink()
    assert again.returncode == 0, again.stderr
    assert machine.network("br-up") == MOVED
    assert machine.reaches(FAR)
    assert machine.uplink("down").returncode == 0
    assert machine.network("eth0") == MOVED
    assert "br-up" not in machine.links()
    assert machine.reaches(FAR)


@pytest.mark.parametrize("keeps_device", [True, False])
def test_bridge_gets_its_addresses_again_after_a_start_of_the_switch(machine: Machine, keeps_device: bool) -> None:
    assert machine.uplink().returncode == 0
    machine.kill_switch()
    assert not machine.reaches(FAR), "a bridge in user space forwards nothing without the switch"
    if not keeps_device:
        run("ip", "-n", machine.name, "link", "del", "br-up")
    machine.start_switch()
    done = machine.uplink()
    assert done.returncode == 0, done.stderr
    assert machine.network("br-up") == MOVED
    assert machine.reaches(FAR)


def test_bridge_gets_its_addresses_after_a_boot_that_gives_them_to_the_card(machine: Machine) -> None:
    assert machine.uplink().returncode == 0
    machine.boot()
    machine.give_address()
    machine.start_switch()
    assert machine.uplink().returncode == 0
    assert machine.network("br-up") == MOVED
    assert machine.network("eth0") == NONE
    assert machine.reaches(FAR)


def test_card_is_as_before_if_the_gateway_does_not_answer_through_the_bridge(machine: Machine) -> None:
    """The last program before the question breaks the bridge."""
    programs = machine.root / "bin"
    programs.mkdir()
    (programs / "ovs-appctl").write_text("#!/bin/sh\novs-ofctl add-flow br-up priority=65535,actions=drop\n")
    (programs / "ovs-appctl").chmod(0o755)
    machine.environment["PATH"] = f"{programs}:{os.environ['PATH']}"
    done = machine.uplink()
    assert done.returncode == 1
    assert f"the gateway {GATEWAY} does not answer through br-up; eth0 is as before" in done.stderr
    assert machine.network("eth0") == MOVED
    assert "br-up" not in machine.links()
    assert machine.reaches(FAR)


def test_gateway_that_is_away_anyway_takes_nothing_back(machine: Machine) -> None:
    run("ip", "-n", machine.gateway, "link", "set", "eth0", "down")
    assert machine.uplink().returncode == 0
    assert machine.network("br-up")[0] == {HOST}
    run("ip", "-n", machine.gateway, "link", "set", "eth0", "up")
    wait_until(lambda: machine.reaches(GATEWAY), "the gateway")
    run("ip", "-n", machine.gateway, "link", "set", "eth0", "down")
    assert machine.uplink().returncode == 0, "nor does a second run"
    assert machine.network("br-up")[0] == {HOST}


def test_card_is_as_before_if_the_script_is_ended_half_way(machine: Machine) -> None:
    # Without the daemon that makes the bridge's device, the script waits for it.
    os.kill(int((machine.root / "ovs-vswitchd.pid").read_text()), signal.SIGSTOP)
    command = ("ip", "netns", "exec", machine.name, str(SCRIPT), "up")
    script = subprocess.Popen(command, env=machine.environment, stderr=subprocess.PIPE, text=True)
    wait_until(
        lambda: "br-up" in run("ovs-vsctl", "--no-wait", "list-br", environment=machine.environment), "the bridge"
    )
    os.kill(int((machine.root / "ovs-vswitchd.pid").read_text()), signal.SIGCONT)
    script.send_signal(signal.SIGTERM)
    assert "eth0 is as before" in script.communicate(timeout=60)[1]
    assert machine.network("eth0") == MOVED
    assert machine.reaches(FAR)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("LINK=nope\n", "there is no link nope"),
        ("LINK=$(reboot)\n", "LINK is missing or no name of a link"),
        ("BRIDGE=br1\n", "LINK is missing"),
        ("LINK=eth0\nBRIDGE=br0\n", "BRIDGE is br0"),
        ("LINK=eth0\nBRIDGE=lo\n", "there is a link lo that is no bridge of Open vSwitch"),
        ("LINK=lo\n", "lo has no address"),
    ],
)
def test_wrong_configuration_changes_nothing(lasting: Machine, text: str, words: str) -> None:
    before = run("ip", "-n", lasting.name, "address")
    lasting.config.write_text(text)
    done = lasting.uplink()
    assert done.returncode == 1
    assert words in done.stderr
    assert run("ip", "-n", lasting.name, "address") == before


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    made = Machine(tmp_path_factory.mktemp("uplink"))
    made.name, made.gateway = f"{made.name}l", f"{made.gateway}l"
    try:
        made.build()
        yield made
    finally:
        made.remove()
