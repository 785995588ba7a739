"""The names of a bridge's tables in the switch's database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from reconcile.errors import NotReady
from sdn.drivers.ovsdb import Ovsdb, PutBridge
from sdn.model.host import Bridge, Port
from tests.testbed.trace.dummy_switch import DummySwitch
from tests.testbed.wait import DEADLINE_SECONDS

OLD = Bridge("br1", datapath_type="dummy", fail_mode="secure", table_names=((0, "source"), (12, "called")))
NEW = Bridge("br1", datapath_type="dummy", fail_mode="secure", table_names=((0, "classifier"), (20, "service_lb")))
WITH_PORT = Bridge("br1", datapath_type="dummy", fail_mode="secure", ports=(Port("p1", type="dummy"),))


@pytest.fixture
def switch() -> Iterator[DummySwitch]:
    with DummySwitch() as running:
        yield running


@pytest.fixture
async def database(switch: DummySwitch) -> AsyncIterator[Ovsdb]:
    driver = Ovsdb(switch.rundir / "db.sock", lambda: None)
    yield driver
    await driver.close()


def bridge(database: Ovsdb) -> Bridge | None:
    try:
        bridges = database.observe().bridges
    except NotReady:
        return None
    return next((bridge for bridge in bridges if bridge.name == "br1"), None)


async def names_become(database: Ovsdb, wanted: tuple[tuple[int, str], ...]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while (observed := bridge(database)) is None or observed.table_names != wanted:
            await asyncio.sleep(0.01)


async def test_new_table_names_replace_all_old_ones(database: Ovsdb) -> None:
    await database.apply((PutBridge(OLD),))
    await names_become(database, OLD.table_names)
    await database.apply((PutBridge(NEW),))
    await names_become(database, NEW.table_names)


async def test_new_port_leaves_table_names_as_they_are(database: Ovsdb, switch: DummySwitch) -> None:
    await database.apply((PutBridge(OLD),))
    await database.apply((PutBridge(WITH_PORT),))
    assert "p1" in switch.vsctl("list-ports", "br1").split()
    await names_become(database, OLD.table_names)
