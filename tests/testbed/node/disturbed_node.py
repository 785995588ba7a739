"""A node whose daemons can be killed, stopped, restarted and run with another clock."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from lab.process import run
from tests.testbed.node.single_node import NODE, SingleNode
from tests.testbed.wait import wait_until

AGENT, MASTER, DOCKER = "podlane-node-agent", "podlane-master", "dockerd"

PROGRAM = "echo run >> /witness/$ME; "
"""Counts its starts in a file of the host."""

LASTING = "trap 'exit 0' TERM; tail -f /dev/null & wait"


class DisturbedNode(SingleNode):
    """A node whose daemons can be disturbed. Containers record their starts in `witness`. `environment` is that of the
    agent.
    """

    def __init__(self, *docker_flags: str) -> None:
        super().__init__(docker=docker_flags)
        self.witness = self.root / "witness"
        self.environment: dict[str, str] = {}
        self.program: tuple[str, ...] = (str(Path(sys.executable).with_name(AGENT)),)
        self._flags: tuple[str, ...] = ()

    def __enter__(self) -> DisturbedNode:
        self.witness.mkdir(parents=True)
        (self.root / "manifests").mkdir()
        super().__enter__()
        return self

    def docker_client(self) -> Any:
        """Docker's own client; to be closed."""
        return self._docker.client()

    def __exit__(self, *_: object) -> None:
        for name in [name for name, process in self._running.items() if process.poll() is not None]:
            del self._running[name]
        for process in self._running.values():
            process.send_signal(signal.SIGCONT)
        self.start_docker()
        super().__exit__()

    @property
    def docker_data(self) -> Path:
        """Where Docker keeps images and containers."""
        return self._docker.root / "data"

    def process(self, name: str) -> psutil.Process:
        """Return a started daemon."""
        return psutil.Process(self._running[name].pid)

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """End a daemon and wait for its end; Docker's own containerd ends with it."""
        children = self.process(name).children()
        process = self._running.pop(name)
        process.send_signal(number)
        process.wait()
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.terminate()
        psutil.wait_procs(children)

    def died(self, name: str) -> bool:
        """Return whether a daemon has ended by SIGKILL. It is then no longer among the running ones."""
        code = self._running[name].poll()
        if code is None:
            return False
        assert code == -signal.SIGKILL, self.log(name)
        del self._running[name]
        return True

    def start_docker(self) -> None:
        """Docker again, when it has ended: as often as it takes, for its own containerd may still be ending."""
        wait_until(self._has_docker, "Docker answers")

    def _has_docker(self) -> bool:
        process = self._running.get(DOCKER)
        if process is None or process.poll() is not None:
            command, environment = self._docker.command(), self._docker.environment()
            with (self._docker.root / "log").open("ab") as log:
                self._running[DOCKER] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        command = ["curl", "-sf", "-m", "5", "--unix-socket", str(self._docker.socket), "http://docker/_ping"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def start_master(self) -> None:
        """Start the master again at the same address."""
        self._start(MASTER, *self._flags)
        wait_until(self._answers, "the master")

    def begin(self, *flags: str) -> None:
        """Start the agent and wait until the node is ready."""
        self.agent(*flags)
        wait_until(lambda: self.node_condition("Ready") == "True", "the node is ready")

    def log(self, name: str) -> str:
        """Return the log of a daemon."""
        return (self.root / f"{name}.log").read_text()

    def health(self, path: str) -> tuple[int, str]:
        """Return the status code and the body of a path at the agent's health address."""
        command = self.process(AGENT).cmdline()
        [address] = [word.partition("=")[2] for word in command if word.startswith("--health-address=")]
        output = subprocess.run(
            ["curl", "-s", "-m", "2", "-w", "\n%{http_code}", f"http://{address}{path}"],
            capture_output=True,
            text=True,
            check=False,
        )
        body, _, code = output.stdout.rpartition("\n")
        return int(code), body

    def apply(self, *pods: str) -> None:
        """Apply the manifests of pods and of other objects."""
        self.client.apply("\n".join(pods))

    def delete(self, *pods: str) -> None:
        """Delete pods without waiting for their end."""
        for name in pods:
            self.client.delete(f"/api/v1/namespaces/default/pods/{name}")

    def _master_flags(self) -> tuple[str, ...]:
        self._flags = super()._master_flags()
        return self._flags

    def _start(self, name: str, *flags: str) -> None:
        if name != AGENT:
            super()._start(name, *flags)
            return
        with (self.root / f"{name}.log").open("ab") as log:
            environment = {**os.environ, **self.environment}
            command = [*self.program, *flags]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
            self._running[name] = process


def pod(node: DisturbedNode, name: str, *, extra: str = "", more: str = "", command: str = LASTING) -> str:
    """Return a pod whose container `main` counts its starts. `extra` is YAML of the spec, `more` of the container."""
    return f"""\
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: default}}
spec:
  nodeName: {NODE}
  terminationGracePeriodSeconds: 0
  containers:
{container("main", command)}
{more}
  volumes:
  - {{name: witness, hostPath: {{path: {node.witness}}}}}
{extra}
"""


def container(name: str, command: str = LASTING, mounts: str = "") -> str:
    """Return a container that counts its starts."""
    return f"""\
  - name: {name}
    image: podlane/toolbox
    imagePullPolicy: Never
    command: [sh, -c, "{PROGRAM}{command}"]
    env:
    - {{name: POD, valueFrom: {{fieldRef: {{fieldPath: metadata.uid}}}}}}
    - {{name: ME, value: $(POD).{name}}}
    volumeMounts:
    - {{name: witness, mountPath: /witness}}
{mounts}"""


def small_filesystem(path: Path, size: str) -> None:
    """Mount a small filesystem at a directory."""
    path.mkdir(parents=True)
    run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path))


MOST_THREADS, MOST_FILES = 80, 120
"""Of the agent: those of its pools for Docker, mounts and files, with a connection for each that speaks to Docker."""


EVERYTHING = """
  initContainers:
{init}
"""


VOLUMES = """\
  - {name: cache, emptyDir: {medium: Memory}}
  - {name: disk, emptyDir: {}}
  - {name: words, configMap: {name: words}}
  - {name: hidden, secret: {secretName: hidden}}
"""


MOUNTS = """\
    - {name: cache, mountPath: /cache}
    - {name: disk, mountPath: /disk, subPath: part}
    - {name: words, mountPath: /words}
    - {name: hidden, mountPath: /hidden}
"""


OBJECTS = """\
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: words, namespace: default}, data: {one: "1"}}
---
{apiVersion: v1, kind: Secret, metadata: {name: hidden, namespace: default}, data: {two: Mg==}}
"""


def full_pod(node: DisturbedNode, name: str) -> str:
    """Return a pod with an init container and volumes of every kind."""
    init = EVERYTHING.format(init=container("first", "true"))
    return pod(node, name, extra=VOLUMES + init, more=MOUNTS)


def running_containers(node: DisturbedNode) -> dict[str, str]:
    """Id of every container that runs → when it was started."""
    identities = node.docker("ps", "-q", "--no-trunc").split()
    rows = node.docker("inspect", "-f", "{{.Id}} {{.State.StartedAt}}", *identities).splitlines()
    return dict(line.split() for line in rows)


def restart_count(node: DisturbedNode, name: str) -> int:
    return int(node.status(name)["containerStatuses"][0]["restartCount"])


def pod_phases(node: DisturbedNode) -> set[str]:
    """Return the phases of all pods of the project `default`."""
    return {pod["status"]["phase"] for pod in node.read("/api/v1/namespaces/default/pods")["items"]}
