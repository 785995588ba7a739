"""A cluster changes its certificate authority: a node follows, and the old certificates are refused at the end."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from api.client.bootstrap import node_kubeconfig
from api.client.client import Client, ClientError
from api.client.kubeconfig import Kubeconfig
from api.core.config import ConfigMap
from api.core.node import Node, NodeAddress
from api.meta.types import ObjectMeta
from api.pki import keys
from cli.__main__ import main
from node_agent.certificates.authorities import Authorities
from node_agent.certificates.client import ClientCertificate
from node_agent.certificates.serving import ServingCertificate
from node_agent.config import Settings
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.wait import wait_until

Podlane = Callable[..., tuple[int, str]]


class Agent:
    """The certificates of a node's agent."""

    def __init__(self, server: ApiServer, folder: Path, name: str) -> None:
        self.trusted: list[bytes] = []
        self.file = folder / f"{name}.kubeconfig"
        self.settings = Settings(
            node_name=name, node_ip="127.0.0.1", kubeconfig=str(self.file), state_dir=str(folder / name)
        )
        asyncio.run(self._join(Kubeconfig.load(server.kubeconfig)))

    async def _join(self, administrator: Kubeconfig) -> None:
        name = self.settings.node_name
        async with Client(administrator) as client:
            self.file.write_text(await node_kubeconfig(client, administrator, name))
        address = NodeAddress(type="Hostname", address=name)
        async with Client(Kubeconfig.load(self.file)) as client:
            await client.create(Node(metadata=ObjectMeta(name=name)))
            status = {"addresses": [{"type": address.type, "address": address.address}]}
            await client.patch_status(Node, name, "", {"status": status})

    def run(self) -> None:
        """Do what the agent does within some minutes."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        minutes = itertools.count(0, 100)
        async with Client(Kubeconfig.load(self.file)) as client:
            authorities = Authorities(self.settings, client, self.trusted.append, lambda: float(next(minutes)))
            serving = ServingCertificate(self.settings, client, is_superseded=authorities.is_superseded)
            certificate = ClientCertificate(self.settings, client, authorities=authorities, serving=serving)
            await serving.load()
            for _ in range(2):
                await certificate.rotate()


@pytest.fixture
def podlane(server: ApiServer, capsys: pytest.CaptureFixture[str]) -> Podlane:
    def run(*words: str) -> tuple[int, str]:
        flags = [f"--state-dir={server.root / 'state'}"]
        flags += [] if words == ("rotate",) else [f"--kubeconfig={server.kubeconfig}"]
        code = main(["ca", *words, *flags])
        output = capsys.readouterr()
        return code, output.out + output.err

    return run


def accepts(kubeconfig: Kubeconfig, node: str) -> bool:
    """Return whether a master that this identity trusts accepts it."""

    async def read() -> bool:
        async with Client(kubeconfig) as client:
            try:
                await client.get(Node, node)
            except ClientError:
                return False
            return True

    return asyncio.run(read())


def root_authorities(server: ApiServer) -> tuple[str, ...]:
    """Return the authorities that pods get."""

    async def read() -> ConfigMap:
        async with Client(Kubeconfig.load(server.kubeconfig)) as client:
            return await client.get(ConfigMap, "kube-root-ca.crt", "default")

    return keys.authority_ids(asyncio.run(read()).data["ca.crt"].encode())


def restart(server: ApiServer) -> None:
    assert server.stop() == 0
    server.start()


def issuer(kubeconfig: Kubeconfig) -> str:
    return keys.parse_certificate(kubeconfig.certificate).issuer_id


def test_cluster_changes_its_authority(server: ApiServer, podlane: Podlane, tmp_path: Path) -> None:
    agent, lost = Agent(server, tmp_path, "follows"), Agent(server, tmp_path, "is-off")
    for each in (agent, lost):
        each.run()
    (old,) = keys.authority_ids(Kubeconfig.load(server.kubeconfig).ca)
    first, administrator = Kubeconfig.load(agent.file), Kubeconfig.load(server.kubeconfig)
    assert issuer(first) == old

    assert podlane("rotate")[0] == 0
    assert "a change is under way" in podlane("rotate")[1]
    restart(server)
    agent.run()
    trusting = Kubeconfig.load(agent.file)
    old_too, new = keys.authority_ids(trusting.ca)
    assert (old_too, issuer(trusting)) == (old, old)
    assert keys.authority_ids(agent.trusted[-1]) == (old, new)
    assert set(wait_until(lambda: root_authorities(server)[1:] and root_authorities(server), "pods")) == {old, new}

    code, output = podlane("activate")
    assert (code, "nothing was changed: is-off do not trust the new authority yet" in output) == (1, True)
    lost.run()
    assert podlane("activate")[0] == 0
    restart(server)
    assert accepts(first, "follows") is False, "it does not trust the server any more"
    assert accepts(trusting, "follows"), "the old certificate is accepted"
    assert accepts(Kubeconfig.load(server.kubeconfig), "follows")
    agent.run()
    renewed = Kubeconfig.load(agent.file)
    assert issuer(renewed) == new

    code, output = podlane("retire")
    assert (code, "nothing was changed: is-off have certificates of the previous" in output) == (1, True)
    assert "trusted by 2 of 2 nodes, which have 1 times its certificates only" in podlane("status")[1]
    lost.run()
    assert podlane("retire")[0] == 0
    restart(server)
    assert not accepts(trusting, "follows")
    assert not accepts(administrator, "follows")
    assert accepts(renewed, "follows")
    agent.run()
    final = Kubeconfig.load(agent.file)
    assert (keys.authority_ids(final.ca), final.certificate) == ((new,), renewed.certificate)
    wait_until(lambda: root_authorities(server) == (new,), "pods trust the new authority only")
    assert podlane("status")[1].splitlines()[-1] == "next: podlane ca rotate begins a change"
