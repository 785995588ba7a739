"""Reads and writes Open vSwitch's database: bridges, ports, their numbers and external_ids, conntrack timeouts. Driver.

The library's connection blocks, so a thread of its own runs it. Requests reach the thread through a queue and a pipe;
results come back as futures of the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import ovs.poller
from ovs.db import idl as ovs_idl

from reconcile.errors import NotReady, Refused
from sdn.drivers.json_messages import use_fast_parser
from sdn.model.host import Bridge, ConntrackZone, OvsState, Port, string_map

SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"
COLUMNS = {
    "Open_vSwitch": ["bridges", "cur_cfg", "datapaths", "next_cfg"],
    "Bridge": ["name", "ports", "datapath_type", "fail_mode", "external_ids", "flow_tables"],
    "Port": ["name", "interfaces"],
    "Interface": ["name", "type", "ofport", "ofport_request", "mac", "mtu_request", "options", "external_ids", "error"],
    "Flow_Table": ["name"],
    "Datapath": ["ct_zones"],
    "CT_Zone": ["timeout_policy"],
    "CT_Timeout_Policy": ["timeouts"],
}
REPLY_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class PutBridge:
    """A change that creates a bridge or sets its columns and these ports; other ports are unchanged.

    Without table names, those of the bridge are unchanged; otherwise it has no others afterwards.
    """

    bridge: Bridge


@dataclass(frozen=True, slots=True)
class RemovePort:
    """A change that removes a port from its bridge; a port that does not exist is no error."""

    bridge: str
    name: str


@dataclass(frozen=True, slots=True)
class PutZone:
    """A change that gives a conntrack zone exactly these timeouts."""

    zone: ConntrackZone


Change = PutBridge | RemovePort | PutZone


@dataclass(slots=True)
class _Job:
    changes: tuple[Change, ...]
    future: asyncio.Future[None]
    transaction: Any = None
    configuration: int | None = None


class Ovsdb:
    """The database of this host. `on_change` is called in the event loop when the observed state has changed."""

    def __init__(self, socket: Path, on_change: Callable[[], None]) -> None:
        self._socket = socket
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._state: OvsState | None = None
        self._jobs: deque[_Job] = deque()
        self._stopping = False
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="ovsdb", daemon=True)
        self._thread.start()

    def observe(self) -> OvsState:
        """Return the state of the database. Raises NotReady until it has answered."""
        if self._state is None:
            raise NotReady(f"{self._socket}: the switch's database does not answer")
        return self._state

    async def apply(self, changes: tuple[Change, ...]) -> None:
        """Apply changes in one transaction, and wait until the switch has carried them out.

        Raises NotReady if there is no reply in time, and Refused with the database's message.
        """
        if not changes:
            return
        job = _Job(changes, self._loop.create_future())
        self._jobs.append(job)
        self._wake()
        try:
            await asyncio.wait_for(job.future, REPLY_TIMEOUT_SECONDS)
        except TimeoutError:
            raise NotReady(f"{self._socket}: no answer within {REPLY_TIMEOUT_SECONDS:.0f} s") from None

    async def close(self) -> None:
        """Stop the thread."""
        self._stopping = True
        self._wake()
        await asyncio.to_thread(self._thread.join)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_writer, b"\0")

    def _run(self) -> None:
        use_fast_parser()
        helper = ovs_idl.SchemaHelper(SCHEMA)
        for table, columns in COLUMNS.items():
            helper.register_columns(table, columns)
        idl = _Idl(f"unix:{self._socket}", helper)
        published_seqno = None
        while not self._stopping:
            idl.run()
            if idl.change_seqno != published_seqno and idl.has_ever_connected():
                published_seqno = idl.change_seqno
                self._publish(idl)
            self._run_jobs(idl)
            self._block(idl)
        idl.close()

    def _block(self, idl: Any) -> None:
        poller = ovs.poller.Poller()
        idl.wait(poller)
        poller.fd_wait(self._wake_reader, select.POLLIN)
        if self._jobs and self._jobs[0].transaction is not None:
            self._jobs[0].transaction.wait(poller)
        poller.block()
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_reader, 4096)

    def _publish(self, idl: Any) -> None:
        state = _ovs_state(idl)
        if state != self._state:
            self._state = state
            self._loop.call_soon_threadsafe(self._on_change)

    def _run_jobs(self, idl: Any) -> None:
        while self._jobs and idl.has_ever_connected():
            job = self._jobs[0]
            if job.future.done() or self._advance(idl, job):
                self._jobs.popleft()
            else:
                return

    def _advance(self, idl: Any, job: _Job) -> bool:
        """Advance a job as far as possible now. Return True if it has ended."""
        root = next(iter(idl.tables["Open_vSwitch"].rows.values()), None)
        if root is None:
            return False
        if job.configuration is not None:
            return root.cur_cfg >= job.configuration and self._end(job, None)
        if job.transaction is None:
            job.transaction = ovs_idl.Transaction(idl)
            for change in job.changes:
                _write(idl, job.transaction, root, change)
            root.increment("next_cfg")
        return self._commit(root, job)

    def _commit(self, root: Any, job: _Job) -> bool:
        status = job.transaction.commit()
        if status == ovs_idl.Transaction.INCOMPLETE:
            return False
        if status == ovs_idl.Transaction.UNCHANGED:
            return self._end(job, None)
        if status in {ovs_idl.Transaction.TRY_AGAIN, ovs_idl.Transaction.NOT_LOCKED}:
            job.transaction = None
            return False
        if status == ovs_idl.Transaction.SUCCESS:
            job.configuration = job.transaction.get_increment_new_value()
            job.transaction = None
            return bool(root.cur_cfg >= job.configuration) and self._end(job, None)
        return self._end(job, Refused(f"{self._socket}: {job.transaction.get_error()}; nothing was changed"))

    def _end(self, job: _Job, error: Exception | None) -> bool:
        def complete() -> None:
            if not job.future.done():
                if error is None:
                    job.future.set_result(None)
                else:
                    job.future.set_exception(error)

        self._loop.call_soon_threadsafe(complete)
        return True


class _Idl(ovs_idl.Idl):  # type: ignore[misc]
    """The library's copy of the database, with a cache of values, so that a change costs what it concerns.

    Rows are read below the library's attributes. Those check each value again and sort rows, which takes 10 ms for the
    column of 500 ports, and they have what the transaction in progress has not committed yet.
    """

    def __init__(self, remote: str, schema_helper: Any) -> None:
        super().__init__(remote, schema_helper)
        self._ports: dict[UUID, Port] = {}
        self._port_of: dict[UUID, UUID] = {}
        self._table_names: dict[UUID, tuple[tuple[int, str], ...]] = {}
        self._zones: frozenset[ConntrackZone] | None = None

    def notify(self, event: str, row: Any, updates: Any = None) -> None:
        """Remove what has changed from the cache. The library calls this for every change.

        `updates` has the former values of the columns that changed, and is None for a row that comes or goes.
        """
        del event
        table = row._table.name
        if table == "Interface":
            if (port := self._port_of.pop(row.uuid, None)) is not None:
                self._ports.pop(port, None)
        elif table == "Port":
            self._ports.pop(row.uuid, None)
        elif table == "Flow_Table" or (table == "Bridge" and (updates is None or "flow_tables" in updates._data)):
            self._table_names.clear()
        elif table != "Bridge" and (updates is None or table != "Open_vSwitch" or "datapaths" in updates._data):
            self._zones = None

    def ports_of(self, bridge_row: Any) -> dict[UUID, Port]:
        """Return the ports of a row of the table Bridge as values, by the UUIDs of their rows.

        A port is missing while it has no interface, and so are those of the transaction in progress.
        """
        ports = ((uuid, self._ports.get(uuid) or self._read_port(uuid)) for uuid in _references(bridge_row, "ports"))
        return {uuid: port for uuid, port in ports if port is not None}

    def _read_port(self, uuid: UUID) -> Port | None:
        port_row = self.tables["Port"].rows.get(uuid)
        for interface in _references(port_row, "interfaces") if port_row is not None else ():
            interface_row = self.tables["Interface"].rows.get(interface)
            if interface_row is not None:
                self._port_of[interface] = uuid
                port = self._ports[uuid] = _port(port_row, interface_row)
                return port
        return None

    def table_names(self, bridge_row: Any) -> tuple[tuple[int, str], ...]:
        """Return numbers and names of the tables of a row of the table Bridge, sorted."""
        names = self._table_names.get(bridge_row.uuid)
        if names is None:
            tables = bridge_row.flow_tables.items()
            names = tuple(sorted((number, _first(table.name) or "") for number, table in tables))
            self._table_names[bridge_row.uuid] = names
        return names

    def zones(self) -> frozenset[ConntrackZone]:
        """Return the conntrack zones that have timeouts of their own."""
        if self._zones is None:
            roots = self.tables["Open_vSwitch"].rows.values()
            self._zones = frozenset(zone for root_row in roots for zone in _zones(root_row))
        return self._zones


def _references(row: Any, column: str) -> list[UUID]:
    """Return the rows to which a column refers; none if the row is not committed yet."""
    return [atom.value for atom in row._data[column].values] if row._data is not None else []


def _value(row: Any, column: str) -> Any:
    """Return a column that refers to no rows, without the transaction in progress."""
    return row._data[column].to_python(lambda value, _: value)


def _first(column: Any) -> Any:
    """Return the value of a column that has at most one, or None."""
    return column[0] if isinstance(column, list) and column else None if isinstance(column, list) else column


def _ovs_state(idl: _Idl) -> OvsState:
    bridges = [_bridge(idl, bridge_row) for bridge_row in idl.tables["Bridge"].rows.values()]
    return OvsState(tuple(sorted(bridges, key=lambda bridge: bridge.name)), idl.zones())


def _zones(root: Any) -> Iterator[ConntrackZone]:
    for datapath_type, datapath in root.datapaths.items():
        for number, zone in datapath.ct_zones.items():
            policy = _first(zone.timeout_policy)
            if policy is not None:
                yield ConntrackZone(datapath_type, number, tuple(sorted(policy.timeouts.items())))


def _bridge(idl: _Idl, bridge_row: Any) -> Bridge:
    ports = idl.ports_of(bridge_row).values()
    return Bridge(
        name=_value(bridge_row, "name"),
        datapath_type=_value(bridge_row, "datapath_type") or "system",
        fail_mode=_first(_value(bridge_row, "fail_mode")) or "",
        external_ids=string_map(_value(bridge_row, "external_ids")),
        table_names=idl.table_names(bridge_row),
        ports=tuple(sorted(ports, key=lambda port: port.name)),
    )


def _port(port_row: Any, interface: Any) -> Port:
    return Port(
        name=_value(port_row, "name"),
        type=_value(interface, "type"),
        ofport=_first(_value(interface, "ofport")),
        ofport_request=_first(_value(interface, "ofport_request")),
        mac=_first(_value(interface, "mac")) or "",
        mtu_request=_first(_value(interface, "mtu_request")),
        options=string_map(_value(interface, "options")),
        external_ids=string_map(_value(interface, "external_ids")),
        error=_first(_value(interface, "error")) or "",
    )


def _write(idl: _Idl, transaction: Any, root: Any, change: Change) -> None:
    if isinstance(change, PutZone):
        _write_zone(idl, transaction, root, change.zone)
        return
    bridge_row = _row_by_name(idl, "Bridge", change.bridge.name if isinstance(change, PutBridge) else change.bridge)
    if isinstance(change, PutBridge):
        if bridge_row is None:
            bridge_row = transaction.insert(idl.tables["Bridge"])
            bridge_row.name = change.bridge.name
            root.addvalue("bridges", bridge_row)
        _write_bridge(idl, transaction, bridge_row, change.bridge)
    elif bridge_row is not None:
        for uuid, port in idl.ports_of(bridge_row).items():
            if port.name == change.name:
                bridge_row.delvalue("ports", idl.tables["Port"].rows[uuid])


def _write_bridge(idl: _Idl, transaction: Any, bridge_row: Any, bridge: Bridge) -> None:
    bridge_row.datapath_type = bridge.datapath_type
    bridge_row.fail_mode = bridge.fail_mode
    for key, value in bridge.external_ids:
        bridge_row.setkey("external_ids", key, value)
    if bridge.table_names:
        tables = {number: transaction.insert(idl.tables["Flow_Table"]) for number, _ in bridge.table_names}
        for number, name in bridge.table_names:
            tables[number].name = name
        bridge_row.flow_tables = tables
    present = {port.name: uuid for uuid, port in idl.ports_of(bridge_row).items()}
    local = Port(bridge.name, type="internal")
    for port in bridge.ports if bridge.name in present else (local, *bridge.ports):
        if port.name in present:
            interface = idl.tables["Port"].rows[present[port.name]].interfaces[0]
        else:
            interface = _insert_port(idl, transaction, bridge_row, port.name)
        _write_interface(interface, port)


def _write_zone(idl: Any, transaction: Any, root: Any, zone: ConntrackZone) -> None:
    datapath = root.datapaths.get(zone.datapath_type)
    if datapath is None:
        datapath = transaction.insert(idl.tables["Datapath"])
        root.setkey("datapaths", zone.datapath_type, datapath)
    zone_row = transaction.insert(idl.tables["CT_Zone"])
    zone_row.timeout_policy = policy = transaction.insert(idl.tables["CT_Timeout_Policy"])
    policy.timeouts = dict(zone.timeouts)
    datapath.setkey("ct_zones", zone.number, zone_row)


def _insert_port(idl: Any, transaction: Any, bridge: Any, name: str) -> Any:
    interface = transaction.insert(idl.tables["Interface"])
    interface.name = name
    port = transaction.insert(idl.tables["Port"])
    port.name = name
    port.interfaces = [interface]
    bridge.addvalue("ports", port)
    return interface


def _write_interface(interface: Any, port: Port) -> None:
    interface.type = port.type
    interface.ofport_request = port.ofport_request if port.ofport_request is not None else []
    interface.mac = port.mac or []
    interface.mtu_request = port.mtu_request if port.mtu_request is not None else []
    interface.options = dict(port.options)
    interface.external_ids = dict(port.external_ids)


def _row_by_name(idl: Any, table: str, name: str) -> Any:
    return next((row for row in idl.tables[table].rows.values() if row.name == name), None)
