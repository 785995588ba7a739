"""Questions to nodes: what is accepted of them. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from api import traces
from api.networks import check_address
from api.queries import CaptureQuestion, NodeQuery, TraceQuestion
from api.schema import MISSING, Problem, shown

MOST_PACKETS, MOST_SECONDS = 1000, 60


def check(query: NodeQuery) -> Iterator[Problem]:
    """Exactly one question, to a node."""
    if not query.spec.node_name:
        yield Problem("spec.nodeName", '""', "the node that is asked is required", MISSING)
    asked, capture = query.spec.trace, query.spec.capture
    given = [asked is not None, query.spec.report, capture is not None, query.spec.services is not None]
    if given.count(True) != 1:
        yield Problem("spec", "given", "exactly one of trace, report, capture and services is accepted")
    if capture is not None:
        yield from _check_capture(capture)
    if asked is not None:
        yield from _check_trace(asked)


def _check_capture(asked: CaptureQuestion) -> Iterator[Problem]:
    yield from check_address("spec.capture.pod", asked.pod)
    for path, value, most in (("packets", asked.packets, MOST_PACKETS), ("seconds", asked.seconds, MOST_SECONDS)):
        if not 1 <= value <= most:
            yield Problem(f"spec.capture.{path}", shown(value), f"1 to {most} is accepted")


def _check_trace(asked: TraceQuestion) -> Iterator[Problem]:
    for problem in traces.check(asked):
        yield problem._replace(path=f"spec.trace.{problem.path}")
