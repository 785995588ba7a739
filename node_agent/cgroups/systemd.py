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

REPLY_SECONDS = 25.0
"""Time limit for the reply to a method call, and for the end of a job."""

BUS_NAME, INTERFACE = "org.freedesktop.systemd1", "org.freedesktop.systemd1.Manager"
MANAGER = DBusAddress("/org/freedesktop/systemd1", bus_name=BUS_NAME, interface=INTERFACE)

JOB_REMOVED = MatchRule(type="signal", interface=INTERFACE, member="JobRemoved", path=MANAGER.object_path)
"""Matches the signals that arrive. Their sender is a unique name, which is not known."""

JOB_REMOVED_OF_SYSTEMD = MatchRule(
    type="signal", sender=BUS_NAME, interface=INTERFACE, member="JobRemoved", path=MANAGER.object_path
)
"""The signals that the bus delivers."""

UNIT_EXISTS, NO_SUCH_UNIT = f"{BUS_NAME}.UnitExists", f"{BUS_NAME}.NoSuchUnit"

TRANSIENT_ERRORS = frozenset(
    f"org.freedesktop.DBus.Error.{name}"
    for name in ("NoReply", "ServiceUnknown", "NameHasNoOwner", "Disconnected", "Timeout", "TimedOut", "LimitsExceeded")
)
"""Errors of the bus, not of systemd. They occur while the bus or systemd starts."""

REQUIREMENTS = (
    'systemd with dbus is accepted, or Docker with "exec-opts": ["native.cgroupdriver=cgroupfs"] in its daemon.json'
)


class SystemdDriver:
    """The slices of the systemd behind a bus. `cgroups` are the directories of its cgroups."""

    def __init__(self, cgroups: CgroupfsDriver, bus: Path = BUS) -> None:
        self._cgroups = cgroups
        self._bus = bus
        self._applied: dict[CgroupPath, CgroupLimits] = {}
        """The limits that this process has set."""

    def cgroup_parent(self, cgroup: CgroupPath) -> str:
        """Return Docker's name for a slice, for its option cgroup-parent."""
        return hierarchy.slice_unit(cgroup)

    def create(self, cgroup: CgroupPath, limits: CgroupLimits) -> str:
        """Create or update a slice with its ancestors, and set its limits. Returns Docker's name for the slice.

        Raises NotReady, Refused.
        """
        unit = hierarchy.slice_unit(cgroup)
        if self._applied.get(cgroup) == limits and self._cgroups.has_directory(hierarchy.slice_path(cgroup)):
            return unit
        properties = list(hierarchy.slice_properties(limits, self._cgroups.version))
        description = hierarchy.Property("Description", ("s", f"Podlane: {'/'.join(cgroup.names)}"))
        with self._connect() as systemd:
            try:
                systemd.run_job(
                    "StartTransientUnit", "ssa(sv)a(sa(sv))", unit, "replace", [description, *properties], []
                )
            except _UnitExists:
                systemd.call("SetUnitProperties", "sba(sv)", unit, True, properties)
                systemd.run_job("StartUnit", "ss", unit, "replace")
        self._applied[cgroup] = limits
        return unit

    def remove(self, cgroup: CgroupPath) -> None:
        """Remove a slice, and the directories of it that systemd does not manage.

        Raises NotReady while a process is in the slice, Refused.
        """
        self._applied.pop(cgroup, None)
        path = hierarchy.slice_path(cgroup)
        if not self._cgroups.has_directory(path):
            return
        if self._cgroups.has_processes(path):  # Stopping the slice would kill them.
            raise NotReady(f"control group {path} still has processes")
        with self._connect() as systemd:
            try:
                systemd.run_job("StopUnit", "ss", hierarchy.slice_unit(cgroup), "replace")
            except Gone:
                pass  # With version 1, systemd manages only the hierarchies of the controllers that it uses.
        self._cgroups.remove_directory(path)

    def children(self, cgroup: CgroupPath) -> set[str]:
        """Return the last names of the slices directly within this one."""
        names = map(hierarchy.slice_last_name, self._cgroups.directories(hierarchy.slice_path(cgroup)))
        return {name for name in names if name}

    @contextmanager
    def _connect(self) -> Iterator[_Systemd]:
        try:
            with open_dbus_connection(f"unix:path={self._bus}") as connection:
                yield _Systemd(connection)
        except OSError as error:  # TimeoutError is one, too.
            message = f"Docker has the cgroup driver systemd, but {self._bus}: {error.strerror or error}"
            raise NotReady(f"{message}; {REQUIREMENTS}") from None


class _UnitExists(DriverError):
    """The answer of systemd that a unit with the name exists already."""


class _Systemd:
    """A connection to systemd's manager of units."""

    def __init__(self, connection: DBusConnection) -> None:
        self._connection = connection
        self._is_subscribed = False

    def call(self, method: str, signature: str, *arguments: object) -> Any:
        """Call a method of the manager. Returns the body of the reply. Raises Gone, NotReady, Refused, OSError."""
        return self._send(f"{method} {arguments[0]}", new_method_call(MANAGER, method, signature, arguments))

    def run_job(self, method: str, signature: str, *arguments: object) -> None:
        """Call a method that starts a job, and wait for the end of the job. Raises the same as `call`."""
        with self._connection.filter(JOB_REMOVED, queue=deque()) as signals:
            if not self._is_subscribed:
                self._send("AddMatch", message_bus.AddMatch(JOB_REMOVED_OF_SYSTEMD))
                self._send("Subscribe", new_method_call(MANAGER, "Subscribe"))
                self._is_subscribed = True
            (job,) = self.call(method, signature, *arguments)
            result = self._wait_for_job(job, signals)
        if result != "done":
            raise NotReady(f"systemd: {method} {arguments[0]}: {result}")

    def _wait_for_job(self, job: str, signals: deque[Any]) -> str:
        while True:
            _, path, _, result = self._connection.recv_until_filtered(signals, timeout=REPLY_SECONDS).body
            if path == job:
                return str(result)

    def _send(self, request: str, message: Any) -> Any:
        """Send a message and return the body of the reply. `request` names the message in errors."""
        reply = self._connection.send_and_get_reply(message, timeout=REPLY_SECONDS)
        if reply.header.message_type is not MessageType.error:
            return reply.body
        name = reply.header.fields[HeaderFields.error_name]
        text = f"systemd: {request}: {reply.body[0] if reply.body else name}"
        if name == UNIT_EXISTS:
            raise _UnitExists(text)
        if name == NO_SUCH_UNIT:
            raise Gone(text)
        if name in TRANSIENT_ERRORS:
            raise NotReady(text)
        raise Refused(text)
