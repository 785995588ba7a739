"""Nodes that are too old or too new for their master."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from api.core.events import Event
from api.core.node import Node, NodeSystemInfo
from api.meta.types import Condition
from master.controllers.actions import Create, Update
from master.controllers.nodes import lifecycle, versions
from tests.unit.master.action_lines import NOW
from tests.unit.master.examples import node

MASTER = "v1.4.0"
TOO_OLD = (
    "the node agent has version v1.2.9, the master v1.4.0: a node may be 1 minor version older than its master; "
    "upgrade Podlane on the node"
)
TOO_NEW = (
    "the node agent has version v1.5.0, the master v1.4.0: a node newer than its master is not supported; "
    "upgrade the master"
)


def agent(version: str, *conditions: Condition) -> Node:
    obj = node("a")
    status = replace(
        obj.status,
        node_info=NodeSystemInfo(kubelet_version=version),
        conditions=(*obj.status.conditions, *conditions),
    )
    return replace(obj, status=status)


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("v1.4.0+podlane", ""),
        ("v1.4.7+podlane", ""),
        ("v1.3.0+podlane", ""),
        ("v1.4.0.dev3+g0123abc+podlane", ""),
        ("v1.2.9+podlane", TOO_OLD),
        ("v1.5.0+podlane", TOO_NEW),
        ("v0.4.0+podlane", TOO_OLD.replace("v1.2.9", "v0.4.0")),
        ("v2.0.0+podlane", TOO_NEW.replace("v1.5.0", "v2.0.0")),
        ("v1.36.2", ""),
        ("", ""),
        ("+podlane", ""),
        ("v1+podlane", ""),
        (f"v1{'0' * 5000}.4+podlane", ""),
    ],
)
def test_agent_has_the_minor_version_of_its_master_or_the_one_before(version: str, message: str) -> None:
    """Kubelets, and what is no version, are not judged."""
    assert versions.skew_message(version, MASTER) == message


def test_condition_and_event_say_once_what_to_do_and_leave_when_it_is_done() -> None:
    update, event = versions.reconcile([agent("v1.2.9+podlane")], MASTER, NOW)
    assert isinstance(update, Update)
    assert isinstance(event, Create)
    assert isinstance(update.object, Node)
    assert isinstance(event.object, Event)
    ready, skew = update.object.status.conditions
    assert (ready.type, skew.type, skew.status, skew.message) == ("Ready", "VersionSkew", "True", TOO_OLD)
    assert (event.object.reason, event.object.message, event.object.involved_object.name) == (
        "VersionSkew",
        TOO_OLD,
        "a",
    )
    assert list(versions.reconcile([update.object], MASTER, NOW)) == []
    (done,) = versions.reconcile([agent("v1.3.0+podlane", skew)], MASTER, NOW)
    assert isinstance(done, Update)
    assert isinstance(done.object, Node)
    assert [condition.type for condition in done.object.status.conditions] == ["Ready"]


def test_condition_is_no_sign_of_life_of_its_node() -> None:
    old = agent("v1.2.9+podlane")
    seen = lifecycle.update_heartbeats({}, [old], [], monotonic=0.0)
    update, _ = versions.reconcile([old], MASTER, NOW)
    assert isinstance(update, Update)
    assert isinstance(update.object, Node)
    assert lifecycle.update_heartbeats(seen, [update.object], [], monotonic=30.0) == seen
