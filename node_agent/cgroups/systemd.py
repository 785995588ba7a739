"""Cgroups as systemd slices (driver systemd). Driver."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jeepney import DBusAddress, HeaderFields, MatchRule, MessageType, new_method_call
from jeepney.bus_messages import message_bus
from jeepney.io.blocking import DBusConnection, open_dbus_connection

from node_agent.cgroups import hierarchy
from node_agent.cgroups.cgroupfs import CgroupfsDriver
from node_agent.cgroups.hierarchy import CgroupLimits, CgroupPath
from reconcile.errors import DriverError, Gone, NotReady, Refused

BUS = Path("/run/dbus/system_bus_socket")
ANSWER_SECONDS = 25.0

NAME, INTERFACE = "org.freedesktop.systemd1", "org.freedesktop.systemd1.Manager"
SYSTEMD = DBusAddress("/org/freedesktop/systemd1", bus_name=NAME, interface=INTERFACE)
JOB_REMOVED = MatchRule(type="signal", interface=INTERFACE, member="JobRemoved", path=SYSTEMD.object_path)
OF_SYSTEMD = MatchRule(type="signal", sender=NAME, interface=INTERFACE, member="JobRemoved", path=SYSTEMD.object_path)
"""What the bus is asked for; on arrival the sender's name is another one, which says nothing."""

EXISTS, UNKNOWN = f"{NAME}.UnitExists", f"{NAME}.NoSuchUnit"
PASSING = frozenset(
    f"org.freedesktop.DBus.Error.{name}"
    for name in ("NoReply", "ServiceUnknown", "NameHasNoOwner", "Disconnected", "Timeout", "TimedOut", "LimitsExceeded")
)
"""Errors of the bus, not of systemd: it may be on its way up."""

ACCEPTED = (
    'systemd with dbus is accepted, or Docker with "exec-opts": ["native.cgroupdriver=cgroupfs"] in its daemon.json'
)


class SystemdDriver:
    """The slices of the systemd that this bus belongs to; `cgroups` is where it has their directories."""

    def __init__(self, cgroups: CgroupfsDriver, bus: Path = BUS) -> None:
        self._cgroups = cgroups
        self._bus = bus
        self._made: dict[CgroupPath, CgroupLimits] = {}

    def name(self, group: CgroupPath) -> str:
        """What Docker is told of a slice."""
        return hierarchy.slice_unit(group)

    def make(self, group: CgroupPath, limits: CgroupLimits) -> str:
        """The slice with its limits, and those above it; returns what Docker is told of it.

        Raises NotReady, Refused.
        """
        unit = hierarchy.slice_unit(group)
        if self._made.get(group) == limits and self._cgroups.has_directory(hierarchy.slice_path(group)):
            return unit
        wish = list(hierarchy.slice_properties(limits, self._cgroups.version))
        about = hierarchy.Property("Description", ("s", f"Podlane: {'/'.join(group.names)}"))
        with self._connected() as systemd:
            try:
                systemd.run("StartTransientUnit", "ssa(sv)a(sa(sv))", unit, "replace", [about, *wish], [])
            except _ExistsError:
                systemd.ask("SetUnitProperties", "sba(sv)", unit, True, wish)
                systemd.run("StartUnit", "ss", unit, "replace")
        self._made[group] = limits
        return unit

    def remove(self, group: CgroupPath) -> None:
        """The slice, and what of it systemd does not look after. Raises NotReady while it has processes, Refused."""
        self._made.pop(group, None)
        path = hierarchy.slice_path(group)
        if not self._cgroups.has_directory(path):
            return
        if self._cgroups.has_processes(path):  # Which systemd would end.
            raise NotReady(f"control group {path} still has processes")
        with self._connected() as systemd:
            try:
                systemd.run("StopUnit", "ss", hierarchy.slice_unit(group), "replace")
            except Gone:
                pass  # Of the hierarchies of version 1 systemd looks only after those that it has a use for.
        self._cgroups.remove_directory(path)

    def below(self, group: CgroupPath) -> set[str]:
        """The last names of the groups within this one."""
        names = map(hierarchy.slice_last_name, self._cgroups.directories(hierarchy.slice_path(group)))
        return {name for name in names if name}

    @contextmanager
    def _connected(self) -> Iterator[_Systemd]:
        try:
            with open_dbus_connection(f"unix:path={self._bus}") as connection:
                yield _Systemd(connection)
        except OSError as error:  # Also of a bus that does not answer in time.
            found = f"Docker makes control groups through systemd, but {self._bus}: {error.strerror or error}"
            raise NotReady(f"{found}; {ACCEPTED}") from None


class _ExistsError(DriverError):
    """There is a unit of this name."""


class _Systemd:
    """The manager of units."""

    def __init__(self, connection: DBusConnection) -> None:
        self._connection = connection
        self._listens = False

    def ask(self, method: str, signature: str, *words: object) -> Any:
        """Call a method of the manager and return the answer. Raises Gone, NotReady, Refused, OSError."""
        return self._answer(f"{method} {words[0]}", new_method_call(SYSTEMD, method, signature, words))

    def run(self, method: str, signature: str, *words: object) -> None:
        """Call a method that starts a job, and wait for its end. Raises as `ask`."""
        with self._connection.filter(JOB_REMOVED, queue=deque()) as ended:
            if not self._listens:
                self._answer("AddMatch", message_bus.AddMatch(OF_SYSTEMD))
                self._answer("Subscribe", new_method_call(SYSTEMD, "Subscribe"))
                self._listens = True
            (job,) = self.ask(method, signature, *words)
            result = self._end_of(job, ended)
        if result != "done":
            raise NotReady(f"systemd: {method} {words[0]}: {result}")

    def _end_of(self, job: str, ended: deque[Any]) -> str:
        while True:
            _, path, _, result = self._connection.recv_until_filtered(ended, timeout=ANSWER_SECONDS).body
            if path == job:
                return str(result)

    def _answer(self, what: str, message: Any) -> Any:
        reply = self._connection.send_and_get_reply(message, timeout=ANSWER_SECONDS)
        if reply.header.message_type is not MessageType.error:
            return reply.body
        name = reply.header.fields[HeaderFields.error_name]
        words = f"systemd: {what}: {reply.body[0] if reply.body else name}"
        if name == EXISTS:
            raise _ExistsError(words)
        if name == UNKNOWN:
            raise Gone(words)
        raise (NotReady if name in PASSING else Refused)(words)
