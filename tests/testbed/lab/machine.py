"""A machine in namespaces of its own, for a lab that may use the machine's networks, and an Internet beside it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

import dns.message
import dns.rrset

from tests.testbed.namespaces import inside
from tests.testbed.wait import CALL_SECONDS, wait_until

INTERNET = "198.51.100.1"
"""Address of a server outside of the machine: a documentation network (RFC 5737)."""

RESOLVER = "127.0.0.53"
REGISTRY_PORT = 5000
REGISTRY_NAME = "registry.test"


class Machine:
    """Network and mount namespaces with an uplink to the server INTERNET.

    Its resolver, at a loopback address, knows REGISTRY_NAME only, the registry at INTERNET.
    """

    def __init__(self, machine: int, internet: int) -> None:
        self._machine = machine
        self._internet = internet

    @property
    def network(self) -> str:
        """Path of the network namespace."""
        return f"/proc/{self._machine}/ns/net"

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a program on the machine, and return its output."""
        entered = ("nsenter", f"--target={self._machine}", "--mount", "--net", f"--wd={Path.cwd()}", *command)
        done = subprocess.run(entered, capture_output=True, text=True, timeout=CALL_SECONDS, check=False)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def python(self, program: str, *arguments: str) -> str:
        """Run a Python program on the machine, and return its output."""
        return self.run(sys.executable, "-c", program, *arguments).stdout

    def on_the_internet(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a program at INTERNET."""
        return subprocess.Popen(("nsenter", f"--target={self._internet}", "--net", *command))


@contextlib.contextmanager
def machine(root: Path) -> Iterator[Machine]:
    """Make the machine, its uplink, resolver and the registry, until the end of the block."""
    with contextlib.ExitStack() as stack:
        here = Machine(stack.enter_context(_sleeping(("--net", "--mount"))), stack.enter_context(_sleeping(("--net",))))
        _connect(here)
        _overlay_etc(here, root)
        stack.enter_context(_resolver(here))
        settings = {"storage": {"filesystem": {"rootdirectory": f"{root}/images"}}, "version": 0.1}
        settings["http"] = {"addr": f"{INTERNET}:{REGISTRY_PORT}"}
        (root / "registry.yml").write_text(json.dumps(settings))
        registry = here.on_the_internet("docker-registry", "serve", str(root / "registry.yml"))
        stack.callback(registry.wait)
        stack.callback(registry.kill)
        yield here


@contextlib.contextmanager
def _sleeping(namespaces: Sequence[str]) -> Iterator[int]:
    process = subprocess.Popen(("unshare", *namespaces, "sleep", "infinity"))
    own = os.readlink("/proc/self/ns/net")
    try:
        wait_until(lambda: os.readlink(f"/proc/{process.pid}/ns/net") != own, "the namespaces exist")
        yield process.pid
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def _connect(here: Machine) -> None:
    outside = ("nsenter", f"--target={here._internet}", "--net")
    here.run("ip", "link", "set", "lo", "up")
    here.run("ip", "link", "add", "uplink", "type", "veth", "peer", "name", "eth0", "netns", str(here._internet))
    here.run("ip", "addr", "add", "198.51.100.2/24", "dev", "uplink")
    here.run("ip", "link", "set", "uplink", "up")
    here.run("sysctl", "-qw", "net.ipv4.ip_forward=0")
    for words in (("addr", "add", f"{INTERNET}/24", "dev", "eth0"), ("link", "set", "eth0", "up")):
        # The server has no route to the lab's networks, as the real Internet has none.
        subprocess.run((*outside, "ip", *words), check=True)


def _overlay_etc(here: Machine, root: Path) -> None:
    """Give the machine an /etc of its own with another resolv.conf and Docker configuration."""
    layers = root / "etc"
    layers.mkdir()
    here.run("mount", "-t", "tmpfs", "etc", str(layers))
    here.run("mkdir", f"{layers}/upper", f"{layers}/work")
    options = f"lowerdir=/etc,upperdir={layers}/upper,workdir={layers}/work"
    here.run("mount", "-t", "overlay", "overlay", "-o", options, "/etc")
    settings = {"insecure-registries": [f"{REGISTRY_NAME}:{REGISTRY_PORT}"], "data-root": "/nonexistent"}
    write = "import sys; from pathlib import Path; p = Path(sys.argv[1]); p.parent.mkdir(exist_ok=True); p.unlink(True)"
    for name, text in (
        ("resolv.conf", f"nameserver {RESOLVER}\n"),
        ("docker/daemon.json", json.dumps(settings)),
    ):
        here.python(f"{write}; p.write_text(sys.argv[2])", f"/etc/{name}", text)


class _Answers(asyncio.DatagramProtocol):
    """A name server that knows REGISTRY_NAME only."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The loop's own transport has the methods, but not the class.
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        question = dns.message.from_wire(data)
        answer = dns.message.make_response(question, recursion_available=True)
        asked = question.question[0]
        if asked.name.to_text() != f"{REGISTRY_NAME}.":
            answer.set_rcode(dns.rcode.NXDOMAIN)
        elif asked.rdtype == dns.rdatatype.A:
            answer.answer.append(dns.rrset.from_text(asked.name, 60, "IN", "A", INTERNET))
        self._transport.sendto(answer.to_wire(), addr)


@contextlib.contextmanager
def _resolver(here: Machine) -> Iterator[None]:
    loop = asyncio.new_event_loop()
    stop: Callable[[], None] = loop.stop

    def serve() -> None:
        with inside(here.network):
            transport, _ = loop.run_until_complete(loop.create_datagram_endpoint(_Answers, local_addr=(RESOLVER, 53)))
        loop.run_forever()
        transport.close()
        loop.run_until_complete(asyncio.sleep(0))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop)
        thread.join()
        loop.close()
