"""How a NetNamespace asks for another VNID: an annotation, taken away in the write that gives the VNID. Pure."""

from __future__ import annotations

from dataclasses import dataclass

CHANGE_NETWORK = "pod.network.openshift.io/multitenant.change-network"
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
