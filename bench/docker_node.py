"""One node as on a real host: master, Open vSwitch, sdn daemon, dockerd and node agent."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from lab import images
from lab.topology import LabNode, daemon_processes, docker_process
from tests.testbed.netns.cluster import NetnsCluster, bench_lab
from tests.testbed.wait import wait_until


@contextlib.contextmanager
def docker_node(max_pods: int) -> Iterator[NetnsCluster]:
    """Start the node, which has the image podlane/pause. Remove everything at the end."""
    with NetnsCluster(bench_lab(1)) as cluster:
        (node,) = cluster.lab.nodes
        for folder in ("docker-run", "manifests"):
            (node.root / folder).mkdir()
        (node.root / "docker.json").write_text("{}\n")
        (node.root / "node-agent.yaml").write_text(f"maxPods: {max_pods}\n")
        docker, agent = docker_process(cluster.lab, node), daemon_processes(cluster.lab, node)[1]
        cluster.start(docker.name, docker)
        wait_until(lambda: _docker_answers(node), "dockerd")
        images.load_pause(str(node.docker_socket))
        cluster.start(agent.name, agent)
        yield cluster


def _docker_answers(node: LabNode) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(node.docker_socket)) == 0
