"""The control socket of ovs-vswitchd: requests, errors, answers of any size."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from pathlib import Path

import pytest

from reconcile.errors import NotReady, Refused
from sdn.drivers import diagnostics
from sdn.drivers.diagnostics import OvsAppctl
from sdn.query.dropped_packets import datapath_size
from tests.testbed.trace.dummy_switch import DummySwitch

FLOWS = 1_000
PACKET = (
    "in_port(1),eth(src=50:54:00:00:00:05,dst=50:54:00:00:00:07),eth_type(0x0800),"
    "ipv4(src=192.168.0.1,dst=10.0.{}.{},proto=6,tos=0,ttl=64,frag=no),tcp(src=8,dst=9)"
)


def receive(switch: DummySwitch, packets: list[str]) -> None:
    """Let packets enter at the port p1."""
    command = ["ovs-appctl", "-t", str(switch.rundir / "ovs-vswitchd.ctl"), "netdev-dummy/receive", "p1", *packets]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OVS_RUNDIR": str(switch.rundir)})


async def test_flows_of_a_datapath_are_read_whatever_their_size(switch: DummySwitch) -> None:
    switch.add_ports({"p1": 1})
    switch.vsctl("set", "Open_vSwitch", ".", "other_config:max-idle=600000")
    flows = switch.rundir / "flows"
    rows = [f"ip,nw_dst=10.0.{number >> 8}.{number & 255},actions=drop" for number in range(FLOWS)]
    flows.write_text("\n".join(rows))
    switch.ofctl("add-flows", "br0", str(flows))
    packets = [PACKET.format(number >> 8, number & 255) for number in range(FLOWS)]
    for first in range(0, FLOWS, 50):  # The port's queue has place for 100.
        receive(switch, packets[first : first + 50])
    appctl = OvsAppctl(switch.rundir)
    size = datapath_size(await appctl.datapaths())
    assert size is not None
    assert size.name == "dummy@ovs-dummy"
    lines = (await appctl.datapath_flows(size.name)).splitlines()
    dropping = [line for line in lines if "actions:drop" in line]
    assert FLOWS // 4 < len(dropping) <= FLOWS
    assert all("in_port(p1)" in line for line in dropping)
    assert sum(map(len, lines)) > 1 << 16


async def test_error_of_the_switch_is_refused_with_its_text(switch: DummySwitch) -> None:
    appctl = OvsAppctl(switch.rundir)
    assert "Datapath actions: drop" in await appctl.trace("br0", "in_port=1,ip")
    with pytest.raises(Refused, match=r"ofproto/trace br9 ip: .*br9"):
        await appctl.trace("br9", "ip")


async def test_switch_that_is_dead_or_silent_is_not_ready(
    switch: DummySwitch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch.kill_vswitchd()
    with pytest.raises(NotReady, match="does not answer"):
        await OvsAppctl(switch.rundir).datapaths()
    monkeypatch.setattr(diagnostics, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(diagnostics, "MAX_ANSWER_BYTES", 1000)
    for answer, problem in ((b"", "does not answer"), (b"{}} x" * 1000, "larger than 1000"), (None, "closed")):
        ended = asyncio.Event()

        async def serve(
            reader: asyncio.StreamReader,
            writer: asyncio.StreamWriter,
            answer: bytes | None = answer,
            ended: asyncio.Event = ended,
        ) -> None:
            with contextlib.suppress(OSError):
                await reader.read(1 << 16)
                if answer is not None:
                    writer.write(answer)
                    await reader.read()
                writer.close()
                await writer.wait_closed()
            ended.set()

        path = tmp_path / "ovs-vswitchd.ctl"
        path.unlink(missing_ok=True)
        async with await asyncio.start_unix_server(serve, path):
            with pytest.raises((NotReady, Refused), match=problem):
                await OvsAppctl(tmp_path).datapaths()
            await ended.wait()
