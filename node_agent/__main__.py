"""`podlane-node-agent`: wiring only."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from api.client import Client
from api.kubeconfig import BadKubeconfig, Kubeconfig
from node_agent.agent import Agent
from node_agent.drivers.docker import Docker
from node_agent.drivers.network import PodNetwork
from node_agent.settings import Settings
from reconcile.daemon import notify, run
from reconcile.health import Health
from reconcile.settings import load


async def serve(settings: Settings) -> None:
    """Run until cancelled; the pods stay as they are afterwards."""
    docker = Docker(settings.docker_socket)
    async with (
        Client(Kubeconfig.load(settings.kubeconfig)) as client,
        PodNetwork(settings.sdn_socket) as network,
        asyncio.TaskGroup() as tasks,
    ):
        agent = Agent(settings, client, docker, network, tasks.create_task)
        health = Health(settings.health_address, lambda: agent.unready)
        await health.start()
        notify("READY=1")
        try:
            for work in (
                agent.heart.run(),
                agent.ports.run(),
                agent.node.heart.run(),
                agent.node.mirror.run(),
                agent.statuses.loop.run(),
                agent.recorder.loop.run(),
                agent.loop.run(),
                agent.detacher.run(),
                agent.manifests.run(),
                agent.mirror.run(),
                agent.follow_docker(),
            ):
                tasks.create_task(work)
            await asyncio.Event().wait()
        finally:
            docker.close()
            await health.stop()


def main() -> int:
    """Entry point of the command."""
    settings = load(Settings, "podlane-node-agent", "/etc/podlane/node-agent.yaml")
    Path(settings.state_dir).mkdir(parents=True, exist_ok=True)
    try:
        return run(lambda: serve(settings), settings.log_level)
    except BadKubeconfig as error:
        sys.stderr.write(f"podlane-node-agent: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
