"""Nodes whose node agent is of another version than the master supports. Pure.

The version of a node agent ends with `+podlane`; kubelets have others and are not judged. The condition is on the Node
only while the versions do not fit.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from api.core.events import WARNING, object_reference
from api.core.node import Node
from api.meta.types import Condition
from master.controllers import events
from master.controllers.actions import Action, Update, isolate_errors
from master.controllers.context import Lister
from master.resources.metadata import format_time

CONDITION = "VersionSkew"
MAX_MINOR_SKEW = 1
"""How many minor versions a node agent may be older than the master."""

_VERSION = re.compile(r"v?(\d{1,6})\.(\d{1,6})", re.ASCII)
_SUFFIX = "+podlane"


def skew_message(agent: str, master: str) -> str:
    """Return what is wrong with the version of a node agent beside that of the master; empty if nothing is.

    An agent may have the minor version of the master, or the one before.
    """
    agent_match, master_match = _VERSION.match(agent), _VERSION.match(master)
    if not agent.endswith(_SUFFIX) or not agent_match or not master_match:
        return ""
    agent_number, master_number = (tuple(int(part) for part in match.groups()) for match in (agent_match, master_match))
    found = f"the node agent has version {agent.removesuffix(_SUFFIX)}, the master {master}"
    if agent_number > master_number:
        return f"{found}: a node newer than its master is not supported; upgrade the master"
    if agent_number[0] < master_number[0] or master_number[1] - agent_number[1] > MAX_MINOR_SKEW:
        return (
            f"{found}: a node may be {MAX_MINOR_SKEW} minor version older than its master; upgrade Podlane on the node"
        )
    return ""


def reconcile(nodes: Iterable[Node], master: str, now: datetime.datetime) -> Iterator[Action]:
    """Yield the nodes whose condition has to change, each new one with an event."""

    def sync_node(node: Node) -> Iterator[Action]:
        agent = node.status.node_info.kubelet_version if node.status.node_info else ""
        message = skew_message(agent, master)
        old = next((condition for condition in node.status.conditions if condition.type == CONDITION), None)
        if message == (old.message if old else ""):
            return
        others = tuple(condition for condition in node.status.conditions if condition.type != CONDITION)
        conditions = (*others, _condition(message, old, now)) if message else others
        yield Update(replace(node, status=replace(node.status, conditions=conditions)), node)
        if message:
            subject = replace(object_reference(node), uid=node.metadata.name)
            yield events.event_about(subject, WARNING, CONDITION, message, "node-version-controller", now)

    yield from isolate_errors(nodes, sync_node)


def _condition(message: str, old: Condition | None, now: datetime.datetime) -> Condition:
    since = old.last_transition_time if old else format_time(now)
    return Condition(
        type=CONDITION, status="True", reason="UnsupportedVersion", message=message, last_transition_time=since
    )


def sync_versions(lister: Lister) -> Iterator[Action]:
    """Report the nodes that are too old or too new for this master."""
    yield from reconcile(lister.list(Node), lister.context.version, lister.now)
