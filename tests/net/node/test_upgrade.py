"""An sdn daemon with another pipeline takes over a node that carries traffic."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.testbed.isolation.world import reaches
from tests.testbed.netns.packet_world import PacketWorld, running_world
from tests.testbed.traffic import Ping, TcpStream
from tests.testbed.wait import wait_until

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def cluster() -> Iterator[PacketWorld]:
    with running_world("podupg", 21) as running:
        yield running


def other_version(folder: Path) -> Path:
    """Write a copy of the daemon in which every table but the first has another number."""
    for package in ("api", "reconcile", "sdn"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    pipeline = folder / "sdn" / "pipeline" / "tables.py"
    rows = re.compile(
        r"^    (ARP_RESPONDER|L3_FORWARDING|MULTICAST_TUNNEL|POD_OUTPUT|EXTERNAL_OUTPUT) = (\d+)$", re.MULTILINE
    )
    moved, count = rows.subn(lambda match: f"    {match[1]} = {int(match[2]) + 5}", pipeline.read_text())
    assert count == 5
    pipeline.write_text(moved)
    return folder


def tables(cluster: PacketWorld) -> set[str]:
    return {actual for flow in cluster.flows("node-1") for actual in re.findall(r"table=(\w+)", flow)}


def test_upgrade_loses_no_packet(cluster: PacketWorld, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    source = cluster.pod_namespace("red-a")
    targets = {cluster.pod_namespace(name): cluster.pods[name].address for name in ("red-b", "red-c")}
    pings = [Ping(f"/run/netns/{source}", str(address)) for address in targets.values()]
    streams = [TcpStream(source, target, address) for target, address in targets.items()]
    traffic: list[Ping | TcpStream] = [*pings, *streams]
    for stream in traffic:
        request.addfinalizer(stream.end)
    before, ours = cluster.flows("node-1"), cluster.specification("node-1 sdn")
    folder = other_version(tmp_path)
    program = f"import sys; sys.path.insert(0, {str(folder)!r}); from sdn.__main__ import main; sys.exit(main())"
    process = replace(ours, command=(sys.executable, "-P", "-c", program, *ours.command[1:]))
    for specification in (process, ours, process, ours):
        old = tables(cluster)
        cluster.kill("node-1 sdn")
        cluster.start("node-1 sdn", specification)
        wait_until(lambda old=old: tables(cluster) != old, "the other pipeline")  # type: ignore[misc]
        wait_until(lambda: cluster.network_ready("node-1"), "the network")
        for stream in traffic:
            stream.wait_for_answers(10)
        assert reaches(cluster, "red-a", "red-c")
        assert not reaches(cluster, "blue-a", "red-a")
    assert [ping.lost() for ping in pings] == [0, 0]
    assert cluster.flows("node-1") == before
