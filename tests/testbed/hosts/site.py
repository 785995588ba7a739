"""A master and two nodes on machines of their own, installed and joined as docs/operations/install.md says."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from lab.connectivity import Matrix, Probe, measure
from lab.images import load
from lab.process import LabError
from lab.underlay import kernel_has_datapath
from tests.testbed.documents import UPLINK, runnable
from tests.testbed.hosts.machine import BASE, ROOT, WHEELS, Machine, call
from tests.testbed.hosts.repository import SOURCES, Repository, make_repository
from tests.testbed.traffic import Ping
from tests.testbed.wait import wait_until

# Several checkouts can run tests at once, each with its own networks.
OCTET = int(os.environ.get("PODLANE_E2E_OCTET", "24"))
PREFIX = f"podh{OCTET}"
UNDERLAY = IPv4Network(f"10.245.{OCTET}.0/24")
OUTSIDE = UNDERLAY.network_address + 1
STATE = Path(f"/run/{PREFIX}")
SWITCH = f"{PREFIX}_switch"
"""The namespace with the Ethernet switch of the underlay, which also stands for hosts outside of the cluster."""

ADMIN = "/var/lib/podlane/master/admin.kubeconfig"
SOURCE = "root/podlane"
READY_SECONDS = 120.0

UNDERLAY_UNIT = """\
[Unit]
Description=address of this machine
Before=network-online.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/etc/podlane-testbed-underlay
[Install]
WantedBy=network-online.target multi-user.target
"""
ADDRESS_SCRIPT = """\
#!/bin/sh -e
ip addr replace {address}/{length} dev eth0
ip link set eth0 up
ip route replace default via {outside}
while read -r word resolver; do
    [ "$word" != nameserver ] || ip route replace unreachable "$resolver"
done < /etc/resolv.conf
"""

OPERATOR_KEYS = {"log-level": "warn"}
"""What an operator has written into Docker's settings before the installation."""

PROJECTS = ("red", "blue", "default")
POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: {project}-{number}, namespace: {project}, labels: {{app: demo}}}}
spec:
  nodeName: {node}
  terminationGracePeriodSeconds: 1
  containers:
  - name: toolbox
    image: podlane/toolbox
    imagePullPolicy: IfNotPresent
    command: [sh, -c, "mkdir -p /tmp/www; hostname > /tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www"]
---
"""


def connect(name: str) -> None:
    """Make the network namespace of a machine, with its eth0 at the switch. A machine has the same MAC at each start:
    others have it in their caches.
    """
    veth, mac = f"v{name.rpartition('_')[2]}", (0x02 << 40 | zlib.crc32(name.encode())).to_bytes(6).hex(":")
    # The kernel removes the cable of a namespace some time after the namespace.
    call("ip", "-n", SWITCH, "link", "del", veth, check=False)
    call("ip", "netns", "add", name)
    call("ip", "-n", name, "link", "set", "lo", "up")
    call("ip", "-n", name, "link", "add", "eth0", "address", mac, "type", "veth", "peer", "name", veth, "netns", SWITCH)
    call("ip", "-n", SWITCH, "link", "set", veth, "master", "switch", "up")
    call("ip", "-n", name, "link", "set", "eth0", "up")
    call("ip", "netns", "exec", name, "ethtool", "-K", "eth0", "tx", "off")


def make_switch() -> None:
    """Make the switch of the underlay."""
    call("ip", "netns", "add", SWITCH)
    inside = ("ip", "-n", SWITCH)
    call(*inside, "link", "set", "lo", "up")
    call(*inside, "link", "add", "switch", "type", "bridge")
    call(*inside, "addr", "add", f"{OUTSIDE}/{UNDERLAY.prefixlen}", "dev", "switch")
    call("ip", "netns", "exec", SWITCH, "ethtool", "-K", "switch", "tx", "off")
    call(*inside, "link", "set", "switch", "up")


@contextlib.contextmanager
def workplace() -> Iterator[None]:
    """Hold the directory in memory and the switch; remove what a run that was killed has left."""
    _remove_remains()
    STATE.mkdir()
    call("mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", STATE)
    try:
        make_switch()
        yield
    finally:
        call("ip", "netns", "del", SWITCH, check=False)
        call("umount", "--recursive", STATE)
        STATE.rmdir()


def _remove_remains() -> None:
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                if words[0] == b"systemd-nspawn" and any(word.startswith(bytes(STATE) + b"/") for word in words):
                    leader = (process / f"task/{process.name}/children").read_text().split()
                    call("kill", "-KILL", *leader, process.name, check=False)
    for namespace in Path("/run/netns").glob(f"{PREFIX}_*"):
        call("ip", "netns", "del", namespace.name, check=False)
    if STATE.exists():
        call("umount", "--recursive", STATE, check=False)
        STATE.rmdir()


def machine(name: str, lower: Sequence[Path] = (BASE,)) -> Machine:
    """Return a new machine, which is off."""
    full = f"{PREFIX}_{name}"
    return Machine(full, STATE / name, lower, lambda: connect(full))


def copy_clone(host: Machine, root: Path | None = None) -> None:
    """Put a clone of this repository on a machine, as it is in this directory. `root` is that of one that runs."""
    root = root or host.root
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).is_file():
            target = root / SOURCE / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target)
    shutil.copytree(WHEELS, root / "root/wheels", dirs_exist_ok=True)
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")


def install_clone(host: Machine, role: str) -> str:
    """Install a role from the clone, with Python's packages from a directory. Return the output."""
    packages = "PIP_NO_INDEX=1 PIP_FIND_LINKS=/root/wheels"
    return host.shell(f"cd /{SOURCE}; {packages} make install-{role} 2>&1", online=True)


def apt_get(host: Machine, *words: str) -> str:
    """Run apt-get on a machine, which reaches no other machine. Return the output."""
    return host.shell(f"DEBIAN_FRONTEND=noninteractive apt-get -q -y {' '.join(words)} 2>&1")


def update(host: Machine) -> str:
    """Read the lists of our repository anew; those of Debian stay. Raises AssertionError if the signature is wrong."""
    options = f"-o Dir::Etc::SourceList={SOURCES} -o Dir::Etc::SourceParts=- -o APT::Get::List-Cleanup=0"
    return apt_get(host, options, "-o APT::Update::Error-Mode=any", "update")


def pinned(version: str, *packages: str) -> tuple[str, ...]:
    """Return packages in a version, as apt-get takes them."""
    return tuple(f"{package}={version}" for package in packages)


def install_image(role: str, repository: Repository) -> Path:
    """Install a role on a bare machine, switch it off, and return the directory with what was written."""
    host = machine(f"image-{role}", (repository.layer, BASE))
    try:
        host.write("etc/docker/daemon.json", json.dumps(OPERATOR_KEYS))
        host.start()
        update(host)
        output = apt_get(host, "install", f"podlane-{role}")
        assert "is an example: adjust it" in output
        active = host.run("systemctl", "list-units", "--no-legend", "--state=active,failed", "podlane*").strip()
        assert not active, "nothing starts before its settings are right"
        host.power_off()
        (host.upper / "etc/machine-id").write_text("")
    finally:
        host.remove()
    return host.upper


@dataclass
class Interruption:
    """How many of 50 pings a second had no answer; known when the measurement has ended."""

    lost: int = -1


@contextlib.contextmanager
def timed(what: str) -> Iterator[None]:
    """Print how long the body took."""
    begin = time.monotonic()
    yield
    sys.stdout.write(f"\n{what}: {time.monotonic() - begin:.1f} s\n")


class Site:
    """The running cluster. `nodes` are the nodes by name; the master may be one of them.

    `admin` is the copy of the administrator's kubeconfig that `kubectl` uses.
    """

    def __init__(self, master: Machine, nodes: dict[str, Machine], repository: Repository) -> None:
        self.master, self.nodes, self.repository = master, nodes, repository
        self.admin = STATE / f"{master.name}.kubeconfig"

    @property
    def machines(self) -> tuple[Machine, ...]:
        """The master and the nodes."""
        return (self.master, *self.nodes.values())

    def setup(self) -> None:
        """Start all machines, and join the nodes."""
        for number, host in enumerate(self.machines, 2):
            write_underlay(host, number)
        self.start(self.machines)
        for host in self.nodes.values():
            start_uplink(host)
        self.start_master(2)
        with ThreadPoolExecutor() as threads:
            list(threads.map(self.join, self.nodes))
        self.wait_ready()
        self.kubectl("create", "namespace", "red")
        self.kubectl("create", "namespace", "blue")
        self.create_demo()

    def create_demo(self) -> None:
        """Create the pods of the demo that are not there: in each project one on each node."""
        self.create_pods({f"{project}-{number}": f"node-{number}" for project in PROJECTS for number in (1, 2)})

    def create_pods(self, pods: dict[str, str]) -> None:
        """Create pods, named PROJECT-NUMBER, on nodes."""
        texts = []
        for name, node in pods.items():
            project, _, number = name.rpartition("-")
            texts.append(POD.format(project=project, number=number, node=node))
        manifest = STATE / f"{self.master.name}.yaml"
        manifest.write_text("".join(texts))
        self.kubectl("apply", "-f", str(manifest))

    def start(self, machines: Sequence[Machine]) -> None:
        """Switch machines on, all at once."""
        for host in machines:
            host.begin_start()
        for host in machines:
            host.wait_booted()

    def start_master(self, number: int) -> None:
        """Start the master at the address of this number."""
        address = UNDERLAY.network_address + number
        self.master.shell(f"sed -i 's/^advertiseAddress: .*/advertiseAddress: {address}/' /etc/podlane/master.yaml")
        self.master.run("systemctl", "enable", "--now", "podlane-master")
        self.admin.write_bytes(self.master.path(ADMIN).read_bytes())

    def join(self, name: str) -> None:
        """Join a node. The number in its name is two less than that of its address."""
        node = self.nodes[name]
        line = self.master.run("podlane", "node", "token", "--kubeconfig", ADMIN).split()
        node.run(*line, "--timeout", str(READY_SECONDS))
        load(str(node.path("run/docker.sock")))

    def kubectl(self, *words: str, check: bool = True) -> str:
        """Run kubectl as the administrator, on a host outside of the cluster."""
        inside = ("ip", "netns", "exec", SWITCH, "kubectl", f"--kubeconfig={self.admin}", "--request-timeout=10s")
        return call(*inside, *words, check=check)

    def pods(self) -> dict[str, dict[str, Any]]:
        """Return the pods of the demo by name; empty while the master does not answer."""
        listed = self.kubectl("get", "pods", "-A", "-l", "app=demo", "-o", "json", check=False)
        return {pod["metadata"]["name"]: pod for pod in json.loads(listed)["items"]} if listed else {}

    def wait_ready(self) -> None:
        """Wait until all nodes are ready."""
        wait_until(self._are_nodes_ready, "the nodes are ready", READY_SECONDS, pause=0.3)

    def _are_nodes_ready(self) -> bool:
        listed = json.loads(self.kubectl("get", "nodes", "-o", "json", check=False) or '{"items": []}')["items"]
        return len(listed) == len(self.nodes) and all(map(_is_ready, listed))

    def wait_whole(self) -> Matrix:
        """Wait until nodes and pods are ready and who reaches whom is as it should be; return that."""
        self.wait_ready()
        self.wait_pods(len(PROJECTS) * len(self.nodes))
        matrices: list[Matrix] = []

        def is_as_expected() -> bool:
            with contextlib.suppress(LabError):  # A container runtime that was killed needs a moment.
                matrices.append(self.matrix())
                return not matrices[-1].unexpected()
            return False

        try:
            wait_until(is_as_expected, "who reaches whom", READY_SECONDS)
        except TimeoutError as error:
            error.add_note("\n".join((*matrices[-1].unexpected(), matrices[-1].text())) if matrices else "no answer")
            raise
        return matrices[-1]

    def wait_pods(self, expected: int) -> None:
        """Wait until so many pods of the demo are there, all of them ready."""

        def ready_pods() -> bool:
            pods = self.pods().values()
            return len(pods) == expected and all(map(_is_ready, pods))

        wait_until(ready_pods, "the pods are ready", READY_SECONDS, pause=0.3)

    def matrix(self) -> Matrix:
        """Send packets from every pod to every pod and to a host outside."""
        vnids = {"red": 10, "blue": 11, "default": 0}
        pods = sorted(self.pods().values(), key=lambda pod: str(pod["metadata"]["name"]))
        probes = [
            Probe(
                project=pod["metadata"]["namespace"],
                vnid=vnids[pod["metadata"]["namespace"]],
                name=pod["metadata"]["name"],
                address=pod["status"]["podIP"],
                container=container_id(pod),
                docker_socket=str(self.nodes[pod["spec"]["nodeName"]].path("run/docker.sock")),
            )
            for pod in pods
        ]
        return measure(probes, (), str(OUTSIDE))

    def network_of(self, pod: str) -> Path:
        """Return the network namespace of a pod, as a path on this host."""
        listed = self.pods()[pod]
        node = self.nodes[listed["spec"]["nodeName"]]
        number = node.run("docker", "inspect", "-f", "{{.State.Pid}}", container_id(listed)).strip()
        return node.path(f"proc/{number}/ns/net")

    @contextlib.contextmanager
    def measured(self, what: str, source: str, target: str) -> Iterator[Interruption]:
        """Ping from one pod to another meanwhile, and print for how long there were no answers."""
        network, address = self.network_of(source), self.pods()[target]["status"]["podIP"]
        ping, interruption = Ping(network, address), Interruption()
        try:
            yield interruption
            wait_until(lambda: _answers(network, address), f"{source} reaches {target}", READY_SECONDS)
            interruption.lost = ping.lost()
            seconds = interruption.lost * 0.02
            sys.stdout.write(f"\n{what}: {source} to {target} interrupted for {seconds:.2f} s\n")
        finally:
            ping.end()


def _answers(network: Path, address: str) -> bool:
    command = ["nsenter", f"--net={network}", "ping", "-n", "-c", "1", "-W", "1", address]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _is_ready(listed: dict[str, Any]) -> bool:
    conditions = listed["status"].get("conditions", ())
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def container_id(pod: dict[str, Any]) -> str:
    """Return the ID of a pod's container."""
    return str(pod["status"]["containerStatuses"][0]["containerID"]).removeprefix("docker://")


def write_underlay(host: Machine, number: int) -> None:
    """Write the unit that gives a machine its address at each start."""
    address = UNDERLAY.network_address + number
    script = ADDRESS_SCRIPT.format(address=address, length=UNDERLAY.prefixlen, outside=OUTSIDE)
    host.write("etc/podlane-testbed-underlay", script, 0o755)
    host.write("etc/systemd/system/testbed-underlay.service", UNDERLAY_UNIT)
    for target in ("network-online.target", "multi-user.target"):
        folder = host.root / f"etc/systemd/system/{target}.wants"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "testbed-underlay.service").symlink_to("../testbed-underlay.service")


def start_uplink(host: Machine) -> None:
    """Give the address to a bridge of the switch, as network.md says, if the datapath is in user space."""
    if not kernel_has_datapath():
        for command in runnable(*UPLINK):
            host.shell(command.text)
        assert host.is_active("podlane-uplink")


@contextlib.contextmanager
def running_site() -> Iterator[Site]:
    """Run a cluster of three machines: installed on bare ones, then started from copies. Needs the workplace."""
    with contextlib.ExitStack() as stack:
        repository = make_repository(STATE)
        with ThreadPoolExecutor() as threads:
            master_image, node_image = threads.map(install_image, ("master", "node"), (repository, repository))
        master = machine("master", (master_image, repository.layer, BASE))
        stack.callback(master.remove)
        nodes = {}
        for name in ("node-1", "node-2"):
            nodes[name] = machine(name, (node_image, repository.layer, BASE))
            stack.callback(nodes[name].remove)
        site = Site(master, nodes, repository)
        site.setup()
        yield site
