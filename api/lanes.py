"""How a NetNamespace asks for another VNID, and who shares one on purpose: annotations. Pure.

A request is taken away in the write that gives the VNID.
"""

from __future__ import annotations

from dataclasses import dataclass

from api.objects import NetNamespace

CHANGE_NETWORK = "pod.network.openshift.io/multitenant.change-network"
JOINED = "network.podlane.io/joined"
"""Annotation of a NetNamespace that was joined to another: whose lane it is in. Written with the VNID."""

ACCEPTED = '"global", "isolate" and "join:NAMESPACE" are accepted'


class BadRequest(Exception):
    """`str(error)` says what is accepted."""


@dataclass(frozen=True, slots=True)
class LaneRequest:
    """`verb` is global (VNID 0), isolate (a VNID that nobody else has) or join (that of the namespace `target`)."""

    verb: str
    target: str = ""

    def __str__(self) -> str:
        """As the annotation has it."""
        return f"{self.verb}:{self.target}" if self.target else self.verb


def parse(text: str) -> LaneRequest:
    """The annotation's value. Raises BadRequest."""
    verb, colon, target = text.partition(":")
    if (verb in {"global", "isolate"} and not colon) or (verb == "join" and target):
        return LaneRequest(verb, target)
    raise BadRequest(ACCEPTED)


def owner_of(lane: NetNamespace) -> str:
    """The project to which the VNID was given: its own name, unless it was joined to another."""
    return lane.metadata.annotations.get(JOINED, lane.metadata.name)
