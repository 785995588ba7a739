"""Measures which pods reach which pods and services, with real packets."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from lab.process import run
from reconcile.terminal import GREEN, GREY, RED, colored

OUTSIDE_NAME = "outside"
CALL_SECONDS = 3


@dataclass(frozen=True, slots=True)
class Probe:
    """A pod that sends and receives: its project and VNID (0 with the flat network), and its container."""

    project: str
    vnid: int
    name: str
    address: str
    container: str
    docker_socket: str


@dataclass(frozen=True, slots=True)
class ProbedService:
    """A service that probes reach by name."""

    project: str
    vnid: int
    name: str

    @property
    def address(self) -> str:
        """The URL of the service."""
        return f"http://{self.name}.{self.project}.svc.cluster.local/"


@dataclass(frozen=True, slots=True)
class Matrix:
    """Measured connectivity: `reached` has the pairs (source address, target address) with a reply.

    For a service, the reply of any endpoint counts.
    """

    members: tuple[Probe, ...]
    services: tuple[ProbedService, ...]
    outside: str
    reached: frozenset[tuple[str, str]]

    @property
    def targets(self) -> tuple[Probe | ProbedService, ...]:
        """The targets to which every probe sends."""
        return (*self.members, *self.services)

    def unexpected(self) -> tuple[str, ...]:
        """Return a sentence for every pair that is not as expected."""
        sentences = []
        for source in self.members:
            for target in self.targets:
                got, wanted = (source.address, target.address) in self.reached, expected(source, target)
                if got != wanted:
                    verb = "reaches" if got else "does not reach"
                    sentences.append(f"{source.project}/{source.name} {verb} {target.project}/{target.name}")
            if (source.address, self.outside) not in self.reached:
                sentences.append(f"{source.project}/{source.name} does not reach the outside ({self.outside})")
        return tuple(sentences)

    def text(self) -> str:
        """Return a table, rows send and columns receive: `+` reached, `.` isolated as expected, `!` not as expected.

        Without pods, return a sentence.
        """
        if not self.members:
            return "no demo pods run; `make lab` starts them"
        names = [f"{member.project}/{member.name}" for member in self.members]
        width = max(map(len, names))
        heads = [*(member.name for member in self.members), *map(_head, self.services), OUTSIDE_NAME]
        lines = ["from \\ to".ljust(width) + "  " + "  ".join(heads)]
        for source, name in zip(self.members, names, strict=True):
            cells = [
                self._cell(source, target).center(len(head)) for target, head in zip(self.targets, heads, strict=False)
            ]
            outside = _cell((source.address, self.outside) in self.reached, True).center(len(OUTSIDE_NAME))
            painted = [_painted(cell) for cell in [*cells, outside]]
            lines.append(name.ljust(width) + "  " + "  ".join(painted).rstrip())
        return "\n".join(lines)

    def _cell(self, source: Probe, target: Probe | ProbedService) -> str:
        return _cell((source.address, target.address) in self.reached, expected(source, target))


def expected(source: Probe, target: Probe | ProbedService) -> bool:
    """Return True if the source may reach the target: both have one VNID, or one of them has VNID 0."""
    return source.vnid == target.vnid or 0 in {source.vnid, target.vnid}


def _head(service: ProbedService) -> str:
    return f"svc/{service.project}"


def _cell(got: bool, wanted: bool) -> str:
    if got != wanted:
        return "!+" if got else "!-"
    return "+" if got else "."


def _painted(cell: str) -> str:
    mark = cell.strip()
    return colored(cell, RED if mark.startswith("!") else GREEN if mark == "+" else GREY)


def measure(members: Sequence[Probe], services: Sequence[ProbedService], outside: str) -> Matrix:
    """Send from every pod to every pod and service and to an external address, concurrently. Raises LabError."""
    targets: tuple[Probe | ProbedService, ...] = (*members, *services)
    with ThreadPoolExecutor(max_workers=len(members) or 1) as threads:
        answers = threads.map(lambda member: _probe(member, targets, outside), members)
        reached = {
            (member.address, target) for member, addresses in zip(members, answers, strict=True) for target in addresses
        }
    return Matrix(tuple(members), tuple(services), outside, frozenset(reached))


def _probe(member: Probe, targets: Sequence[Probe | ProbedService], outside: str) -> set[str]:
    """Return the targets that reply to one of three echo requests, or to an HTTP request.

    Runs the docker command, because Docker's Python library loses output that an exec writes before it listens.
    """
    wanted = [target.address for target in targets if expected(member, target)]
    unwanted = [target.address for target in targets if not expected(member, target)]
    script = probe_script((*wanted, outside), unwanted)
    return set(
        run("docker", "-H", f"unix://{member.docker_socket}", "exec", member.container, "sh", "-c", script).split()
    )


def probe_script(wanted: Sequence[str], unwanted: Sequence[str]) -> str:
    """Return a shell script that prints the targets that reply. Pure.

    The first packets between two nodes are lost while their switches resolve each other, so targets that should reply
    have three seconds. The others come afterwards, when a reply takes milliseconds, and have half of the time.
    """
    return f"{_in_parallel(wanted, '-A')} wait; {_in_parallel(unwanted, '-i 0.2')} wait"


def _in_parallel(targets: Sequence[str], options: str) -> str:
    return " ".join(f"({_command(target, options)} >/dev/null 2>&1 && echo {target}) &" for target in targets)


def _command(target: str, options: str) -> str:
    if target.startswith("http"):
        return f"curl -s -m {CALL_SECONDS} {target}"
    return f"ping -c 3 -W 1 {options} {target}"
