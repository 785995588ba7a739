"""The state of the host before a join, kept in a file until the join is complete.

A join that fails restores it. One that was killed is continued by the next, which can still restore it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from cli.join.host import UNITS, FileState, HostError, UnitState

if TYPE_CHECKING:
    from cli.join.host import Host

FILE = "/var/lib/podlane/join.json"


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """A join that is not complete, and what was there before it."""

    server: str
    name: str
    address: str
    kubeconfig: str
    docker_socket: str
    loaded_image: str
    """The image that the join loads; empty if Docker had it before."""
    files: dict[str, FileState]
    units: dict[str, UnitState]

    def is_same_join(self, server: str, name: str, address: str) -> bool:
        """Return whether a join with these values continues this one."""
        return (self.server, self.name, self.address) == (server, name, address)


def load(host: Host) -> Journal | None:
    """Return the join that was interrupted, None if there is none. Raises HostError."""
    text = host.read(FILE)
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=Journal)
    except msgspec.MsgspecError as error:
        raise HostError(f"{FILE}: {error}; `podlane node reset --yes` removes what a join has left") from None


def save(host: Host, journal: Journal) -> None:
    """Write the file. Raises HostError."""
    host.write(FILE, msgspec.json.encode(journal).decode())


def undo(host: Host, journal: Journal) -> Iterator[str]:
    """Restore what was there before a join, and yield a sentence for each thing that remains. Every step is tried."""
    has_joined = host.path(journal.kubeconfig).exists()
    steps: list[Callable[[], None]] = []
    if not any(state.is_active for state in journal.units.values()):
        steps.append(host.reset)

    def restore_unit(unit: str, state: UnitState) -> Callable[[], None]:
        return lambda: host.restore_unit(unit, state)

    def restore_file(name: str, state: FileState) -> Callable[[], None]:
        return lambda: host.restore_file(name, state)

    steps += [restore_file(name, state) for name, state in journal.files.items()]
    steps += [restore_unit(unit, journal.units[unit]) for unit in reversed(UNITS)]
    if journal.loaded_image:
        steps.append(lambda: host.remove_image(journal.docker_socket, journal.loaded_image))
    failed = False
    for step in steps:
        try:
            step()
        except HostError as error:
            failed = True
            yield str(error)
    if failed:
        yield f"{FILE} has what was there before; `podlane node reset --yes` removes the rest"
    else:
        host.remove(FILE)
    if has_joined:
        yield f"the master has the Node {journal.name} and its certificate; there: podlane node remove {journal.name}"
