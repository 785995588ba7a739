"""One node without a pod network: a master, a dockerd and a node agent in one folder."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, Self

from api.client.bootstrap import node_kubeconfig
from api.client.client import Client
from api.client.kubeconfig import Kubeconfig
from lab import images
from lab.down import remove_pod_cgroups
from lab.process import LabError, run
from tests.testbed.apiserver.sync_client import SyncClient
from tests.testbed.docker.daemon import Dockerd
from tests.testbed.wait import wait_until

NODE = "node-1"
_NUMBERS = count()


class SingleNode:
    """A running node. A context manager; `agent` starts the agent, also again with other settings.

    `docker` and `master` are additional flags of dockerd and of the master. `command_prefix` is a command that starts
    each program in a network namespace, or empty.
    """

    def __init__(
        self, docker: tuple[str, ...] = (), master: tuple[str, ...] = (), command_prefix: tuple[str, ...] = ()
    ) -> None:
        self._master = master
        self.root = Path(f"/tmp/podone-{os.getpid()}-{next(_NUMBERS)}")
        self.state = self.root / "agent"
        self.command_prefix = command_prefix
        self._docker = Dockerd(self.root / "docker", docker, command_prefix)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.client = SyncClient(self.root / "admin")

    def __enter__(self) -> Self:
        try:
            self._docker.root.mkdir(parents=True, exist_ok=True)
            self._running["dockerd"] = self._docker.start()
            self.load_images()
            self._start_master()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if "podlane-node-agent" in self._running:
            self._stop("podlane-node-agent")
        if self._docker.socket.exists():
            wait_until(self._cleared, "no container is left")
        for name in reversed(list(self._running)):
            self._stop(name)
        for point in reversed([line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]):
            if point.startswith(f"{self.root}/"):
                run("umount", point)
        remove_pod_cgroups(self.root.name)
        shutil.rmtree(self.root)

    def _cleared(self) -> bool:
        """Remove all containers. Return whether none was left: one that Docker is removing cannot be removed."""
        for identity in (left := self.docker("ps", "-aq").split()):
            with contextlib.suppress(LabError):
                self.docker("rm", "-f", identity)
        return not left

    def agent(self, *flags: str) -> None:
        """Start the agent. An agent that runs is stopped before."""
        if "podlane-node-agent" in self._running:
            self._stop("podlane-node-agent")
        self._start(
            "podlane-node-agent",
            f"--node-name={NODE}",
            "--node-ip=10.245.26.3",
            "--network=none",
            f"--kubeconfig={self.root}/node",
            f"--state-dir={self.state}",
            f"--cgroup-root=/{self.root.name}",
            f"--docker-socket={self._docker.socket}",
            f"--manifest-dir={self.root}/manifests",
            f"--socket={self.root}/agent.sock",
            f"--pod-logs-dir={self.root}/logs/pods",
            f"--container-logs-dir={self.root}/logs/containers",
            "--address=127.0.0.1",
            f"--port={_free_port()}",
            f"--health-address=127.0.0.1:{_free_port()}",
            "--heartbeat-seconds=1",
            "--server-tls-bootstrap=false",
            "--local-registries=[127.0.0.1]",
            *flags,
        )

    @contextlib.contextmanager
    def without_agent(self) -> Iterator[None]:
        """Stop the agent for the block, and start it again afterwards."""
        self._stop("podlane-node-agent")
        yield
        self.agent()

    @property
    def agent_pid(self) -> int:
        """The process ID of the running agent."""
        return self.pid("podlane-node-agent")

    def pid(self, daemon: str) -> int:
        """Return the process ID of a running daemon."""
        return self._running[daemon].pid

    @property
    def docker_socket(self) -> str:
        """The path of Docker's socket."""
        return str(self._docker.socket)

    def docker(self, *words: str) -> str:
        """Run docker and return its output."""
        return run("docker", "-H", f"unix://{self._docker.socket}", *words)

    def load_images(self) -> None:
        """Load the images of the sandbox and of the toolbox, if they are missing."""
        images.load(str(self._docker.socket))

    def import_image(self, name: str) -> None:
        """Create a small image."""
        content = self.root / "image.tar"
        run("tar", "-cf", str(content), "-C", "/etc", "hostname")
        self.docker("import", str(content), name)

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """Run kubectl as the administrator and return its output. It must succeed."""
        done = self._run_kubectl(*words, stdin=stdin)
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}"
        return done.stdout

    def _run_kubectl(self, *words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        command = [*self.command_prefix, "kubectl", f"--kubeconfig={self.root}/admin", *words]
        environment = {**os.environ, "HOME": str(self.root)}
        return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, env=environment)

    def read(self, path: str) -> dict[str, Any]:
        """Return the document at a path of the API, empty if there is none."""
        if not self.command_prefix:
            return self.client.get(path)
        done = self._run_kubectl("get", "--raw", path)
        if "(NotFound)" in done.stderr:
            return {}
        assert done.returncode == 0, f"{path}: {done.stderr}"
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def read_pod(self, pod: str) -> dict[str, Any]:
        """Return a pod of the project `default`, empty if there is none."""
        return self.read(f"/api/v1/namespaces/default/pods/{pod}")

    def status(self, pod: str) -> dict[str, Any]:
        """Return the status of a pod, which must exist."""
        document = self.read_pod(pod)
        assert document, f"there is no pod {pod}"
        status: dict[str, Any] = document["status"]
        return status

    def is_ready(self, pod: str) -> bool:
        """Return whether the condition Ready of a pod is true; False if there is no such pod."""
        conditions = self.read_pod(pod).get("status", {}).get("conditions", [])
        return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)

    def node_condition(self, kind: str, node: str = NODE) -> str:
        """Return the status of a condition of a node: True, False or Unknown; empty if there is none."""
        conditions = self.read(f"/api/v1/nodes/{node}").get("status", {}).get("conditions", [])
        return next((str(condition["status"]) for condition in conditions if condition["type"] == kind), "")

    def traces(self, pod: str = "") -> dict[str, list[str]]:
        """Return what this pod, or all pods together, have on the host, by kind."""
        names = self.docker("ps", "-a", "--format", "{{.Names}}").split()
        uid = self.read_pod(pod)["metadata"]["uid"] if pod else ""
        pods = self.state / "pods"
        walked = os.walk(self.root / "logs")  # A file that is deleted during the walk is not a remainder.
        links = [Path(directory, name) for directory, folders, files in walked for name in (*folders, *files)]
        links = [path for path in links if path.is_symlink() or path.is_dir()]
        folders = {self.root / "logs" / "pods", self.root / "logs" / "containers"}
        actual = {
            "containers": names,
            "directories": [entry.name for entry in pods.iterdir()] if pods.exists() else [],
            "mounts": [line for line in Path("/proc/mounts").read_text().splitlines() if f"{pods}/" in line],
            "logs": [f"{path} {link_target(path)}" for path in links if path not in folders],
        }
        return {kind: sorted(name for name in names if uid in name) for kind, names in actual.items()}

    def _start_master(self) -> None:
        self._start("podlane-master", *self._master_flags())
        wait_until(self._answers, "the master")
        asyncio.run(self._join())

    def _master_flags(self) -> tuple[str, ...]:
        return (
            "--listen-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--port={_free_port()}",
            "--dns-port=0",
            f"--state-dir={self.root}/master",
            f"--admin-kubeconfig={self.root}/admin",
            *self._master,
        )

    def _answers(self) -> bool:
        command = ["kubectl", f"--kubeconfig={self.root}/admin", "get", "namespace", "default"]
        environment = {**os.environ, "HOME": str(self.root)}
        return subprocess.run(command, capture_output=True, check=False, env=environment).returncode == 0

    async def _join(self) -> None:
        administrator = Kubeconfig.load(str(self.root / "admin"))
        async with Client(administrator) as client:
            (self.root / "node").write_text(await node_kubeconfig(client, administrator, NODE))

    def _start(self, name: str, *flags: str) -> None:
        with (self.root / f"{Path(name).name}.log").open("ab") as log:
            command = [*self.command_prefix, str(Path(sys.executable).parent / name), *flags]
            self._running[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _stop(self, name: str) -> None:
        process = self._running.pop(name)
        process.terminate()
        process.wait()


def link_target(path: Path) -> str:
    """Return where a link leads, or nothing if the link was removed meanwhile."""
    try:
        return os.path.realpath(path)
    except OSError:
        return ""


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
