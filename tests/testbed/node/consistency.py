"""Compares the state of a node, in Docker, kernel and file system, with the API."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import docker.errors

from api.validation.static_pods import CONFIG_MIRROR
from tests.testbed.node.disturbed_node import AGENT, DisturbedNode
from tests.testbed.node.single_node import link_target
from tests.testbed.wait import DEADLINE_SECONDS, wait_until

CGROUPS = Path("/sys/fs/cgroup")
FINAL = ("Succeeded", "Failed")
NAME, UID, COUNT = (
    "io.kubernetes.container.name",
    "io.kubernetes.pod.uid",
    "annotation.io.kubernetes.container.restartCount",
)


def wait_until_consistent(node: DisturbedNode, seconds: float = DEADLINE_SECONDS) -> None:
    """Wait until nothing is otherwise than wished, and look once more."""
    actual: list[str] = []

    def holds() -> bool:
        actual[:] = inconsistencies(node)
        return not actual

    try:
        wait_until(holds, "the node is as was wished", seconds)
    except TimeoutError as error:
        raise AssertionError("\n".join((str(error), *actual))) from None


def inconsistencies(node: DisturbedNode) -> list[str]:
    """Return a sentence for each inconsistency at one moment. Some may be transient."""
    pods = {_uid(pod): pod for pod in node.read("/api/v1/pods")["items"]}
    containers = [_Container.of(document) for document in _inspected(node)]
    return [
        *(
            words
            for uid, pod in pods.items()
            for words in _of_pod(pod, [container for container in containers if container.uid == uid])
        ),
        *(
            f"container {container.name} of {container.uid or 'nobody'} is left over"
            for container in containers
            if container.uid not in pods
        ),
        *_of_runs(node, pods),
        *_of_directories(node, pods),
        *_of_mounts(node, pods),
        *_of_cgroups(node, pods, containers),
        *_of_logs(node, containers),
    ]


def _inspected(node: DisturbedNode) -> list[dict[str, Any]]:
    client, rows = node.docker_client(), []
    try:
        for container in client.containers(all=True):
            with contextlib.suppress(docker.errors.NotFound):
                rows.append(client.inspect_container(container["Id"]))
    finally:
        client.close()
    return rows


@dataclass(frozen=True, slots=True)
class _Container:
    id: str
    uid: str
    name: str
    running: bool
    restarts: int
    pid: int
    log: str

    @classmethod
    def of(cls, document: dict[str, Any]) -> _Container:
        labels, state = document["Config"]["Labels"] or {}, document["State"]
        count = int(labels.get(COUNT, "0"))
        return cls(
            document["Id"],
            labels.get(UID, ""),
            labels.get(NAME, ""),
            state["Running"],
            count,
            state["Pid"],
            document["LogPath"],
        )


def _uid(pod: dict[str, Any]) -> str:
    """Return the UID of a pod as its containers know it."""
    meta = pod["metadata"]
    return str(meta.get("annotations", {}).get(CONFIG_MIRROR, meta["uid"]))


def _of_pod(pod: dict[str, Any], containers: list[_Container]) -> Iterator[str]:
    name, spec, status = pod["metadata"]["name"], pod["spec"], pod["status"]
    running = [container for container in containers if container.running]
    if "deletionTimestamp" in pod["metadata"]:
        yield f"pod {name} is still to go"
        return
    if status.get("phase") in FINAL:
        yield from (f"pod {name} has ended, and {container.name} runs" for container in running)
        return
    wished = ["POD", *(container["name"] for container in spec["containers"])]
    there = sorted(container.name for container in running)
    if there != sorted(wished):
        yield f"pod {name} runs {there}, {sorted(wished)} was wished"
    ready = [condition["status"] for condition in status.get("conditions", []) if condition["type"] == "Ready"]
    if status.get("phase") != "Running" or ready != ["True"]:
        yield f"pod {name} is told to be {status.get('phase')}, ready {ready}"
    for container_status in status.get("containerStatuses", []):
        reported = (
            container_status.get("containerID", ""),
            container_status["restartCount"],
            "running" in container_status["state"],
            container_status["ready"],
        )
        held = [
            (f"docker://{container.id}", container.restarts, True, True)
            for container in running
            if container.name == container_status["name"]
        ]
        if held != [reported]:
            yield f"container {container_status['name']} of {name} is told to be {reported}, Docker has {held}"
    for container_status in status.get("initContainerStatuses", []):
        if container_status["state"].get("terminated", {}).get("exitCode") != 0:
            yield f"init container {container_status['name']} of {name} is told to be {container_status['state']}"


def _of_runs(node: DisturbedNode, pods: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield the containers whose number of starts differs from their reported restart count."""
    for uid, pod in pods.items():
        groups = [*pod["status"].get("containerStatuses", []), *pod["status"].get("initContainerStatuses", [])]
        for group in groups:
            file = node.witness / f"{uid}.{group['name']}"
            output = file.read_text().split() if file.exists() else []
            if output != ["run"] * (group["restartCount"] + 1):
                words = f"container {group['name']} of {pod['metadata']['name']}"
                yield f"{words} is told to have restarted {group['restartCount']} times, it says {output}"


def _of_directories(node: DisturbedNode, pods: dict[str, dict[str, Any]]) -> Iterator[str]:
    root = node.state / "pods"
    there = {entry.name for entry in root.iterdir()} if root.exists() else set()
    yield from (f"directory {root}/{uid} is left over" for uid in there - pods.keys())
    yield from (f"pod {pods[uid]['metadata']['name']} has no directory" for uid in _living(pods) - there)
    for folder, _, names in os.walk(root):
        yield from (f"{folder}/{name} is half done" for name in names if name.endswith(("~", "..data_tmp")))


def _of_mounts(node: DisturbedNode, pods: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Volumes in memory are mounted once; nothing else is mounted in the directories of pods but parts of volumes."""
    root = f"{node.state}/pods/"
    points = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    ours = [point.removeprefix(root) for point in points if point.startswith(root)]
    wished = [
        f"{uid}/volumes/{kind}/{volume['name']}"
        for uid in _living(pods)
        for volume in pods[uid]["spec"].get("volumes", [])
        for kind in _in_memory(volume)
    ]
    volumes = [point for point in ours if "/volume-subpaths/" not in point]
    parts = [point for point in ours if "/volume-subpaths/" in point]
    if sorted(volumes) != sorted(wished):
        yield f"mounted are {sorted(volumes)}, {sorted(wished)} was wished"
    yield from (f"{point} is left mounted" for point in parts if point.split("/")[0] not in _living(pods))


def _in_memory(volume: dict[str, Any]) -> list[str]:
    if volume.get("emptyDir", {}).get("medium") == "Memory":
        return ["kubernetes.io~empty-dir"]
    return [f"kubernetes.io~{kind}" for kind in ("secret", "projected") if kind in volume]


def _of_cgroups(node: DisturbedNode, pods: dict[str, dict[str, Any]], containers: list[_Container]) -> Iterator[str]:
    """Yield the inconsistencies of control groups: each pod has its groups, and its processes are in them."""
    tops = [*CGROUPS.glob(f"{node.root.name}/kubepods"), *CGROUPS.glob(f"*/{node.root.name}/kubepods")]
    groups = [name for top in tops for _, names, _ in os.walk(top) for name in names]
    there = {name.removeprefix("pod") for name in groups if name.startswith("pod")}
    yield from (f"control group of {uid} is left over" for uid in there - pods.keys())
    yield from (f"pod {pods[uid]['metadata']['name']} has no control group" for uid in _living(pods) - there)
    for container in containers:
        if container.running and f"/pod{container.uid}/" not in _groups_of(container.pid):
            yield f"container {container.name} of {container.uid} is in another control group"


def _groups_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cgroup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _of_logs(node: DisturbedNode, containers: list[_Container]) -> Iterator[str]:
    """Yield the inconsistencies of logs: each container that has run has a link to its log by pod and by container, and
    no link is broken.
    """
    logs = node.root / "logs"
    entries = [Path(folder, name) for folder, _, names in os.walk(logs) for name in names]
    links = [path for path in entries if path.is_symlink()]
    targets = sorted(map(link_target, links))
    wished = sorted(
        str(Path(container.log).resolve())
        for container in containers
        if container.log and container.name != "POD"
        for _ in range(2)
    )
    yield from (f"link {path} leads nowhere" for path in links if not path.exists())
    if targets != wished:
        yield f"links lead to {targets}, {wished} was wished"


def _living(pods: dict[str, dict[str, Any]]) -> set[str]:
    return {uid for uid, pod in pods.items() if pod["status"].get("phase") not in FINAL}


@dataclass(frozen=True, slots=True)
class Vitals:
    """The resources of the agent: threads, open files, children; memory in bytes."""

    threads: int
    files: int
    children: tuple[str, ...]
    memory: int


def vitals(node: DisturbedNode) -> Vitals:
    """Return the resources of the running agent."""
    agent = node.process(AGENT)
    children = tuple(" ".join(child.cmdline()) for child in agent.children(recursive=True))
    return Vitals(agent.num_threads(), agent.num_fds(), children, agent.memory_info().rss)


def nothing_left(node: DisturbedNode) -> None:
    """Wait until no pod has left anything, with the agent's children."""
    wait_until(lambda: not any(node.traces().values()), "nothing is left of any pod")
    wait_until_consistent(node)
    wait_until(lambda: not vitals(node).children, "the agent has no children")
