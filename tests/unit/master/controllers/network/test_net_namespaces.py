"""Allocation of VNIDs to projects, and requests to change them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from api.network.types import CHANGE_NETWORK_ANNOTATION, JOINED_ANNOTATION, NetNamespace, vnid_owner
from api.validation.registry import check
from master.allocators import FIRST_VNID, AllocatorCursor
from master.controllers.actions import Create, ForceDelete, Update
from master.controllers.network.net_namespaces import reconcile
from tests.unit.master.action_lines import CONFIG, FLAT, cursor, lines
from tests.unit.master.examples import namespace, net_namespace


def asking(name: str, netid: int, requested: str) -> NetNamespace:
    result = net_namespace(name, netid)
    return replace(
        result, metadata=replace(result.metadata, annotations={CHANGE_NETWORK_ANNOTATION: requested, "kept": "yes"})
    )


def test_default_namespace_is_global_and_vnids_start_at_ten() -> None:
    projects = [namespace("red"), namespace("default"), namespace("kube-system"), namespace("blue")]
    assert lines(reconcile(CONFIG, projects, [], AllocatorCursor())) == [
        "+ NetNamespace default 0",
        "+ NetNamespace kube-system 0",
        "+ NetNamespace blue 10",
        "+ NetNamespace red 11",
        "+ Cursor  2",
    ]


def test_deleted_namespace_frees_its_vnid_which_is_reused_last() -> None:
    net_namespaces = [net_namespace("default", 0), net_namespace("red", 10), net_namespace("blue", 11)]
    projects = [namespace("default"), namespace("blue"), namespace("green")]
    assert lines(reconcile(CONFIG, projects, net_namespaces, cursor(2))) == [
        "- NetNamespace red 10",
        "+ NetNamespace green 12",
        "~ Cursor c 3",
    ]


def test_joined_and_terminating_namespaces_keep_their_vnid() -> None:
    net_namespaces = [net_namespace("red", 10), net_namespace("blue", 10)]
    projects = [namespace("red"), namespace("blue", deletion_timestamp="2026-01-01T00:00:00Z")]
    assert lines(reconcile(CONFIG, projects, net_namespaces, cursor(1))) == []


def test_flat_plugin_allocates_no_vnids() -> None:
    assert lines(reconcile(FLAT, [namespace("red")], [], AllocatorCursor())) == []


# --- requests ---------------------------------------------------------------------------------------------------------

PROJECTS = [namespace(name) for name in ("default", "red", "blue")]


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        ("global", ["~ NetNamespace red 0"]),
        ("join:blue", ["~ NetNamespace red 11"]),
        ("join:default", ["~ NetNamespace red 0"]),
        ("join:red", ["~ NetNamespace red 10"]),
        ("isolate", ["~ NetNamespace red 10"]),
        ("join:nobody", ["! netnamespace red: it waits to join nobody, which does not exist"]),
        (
            "sideways",
            [
                "! netnamespace red: its request 'sideways' is not carried out: "
                '"global", "isolate" and "join:NAMESPACE" are accepted'
            ],
        ),
    ],
)
def test_change_network_request_is_applied(requested: str, expected: list[str]) -> None:
    net_namespaces = [net_namespace("default", 0), asking("red", 10, requested), net_namespace("blue", 11)]
    assert lines(reconcile(CONFIG, PROJECTS, net_namespaces, cursor(2))) == expected


def test_change_network_annotation_is_removed_with_the_vnid_change() -> None:
    (change,) = reconcile(CONFIG, PROJECTS[1:], [asking("red", 10, "global"), net_namespace("blue", 11)], cursor(2))
    assert isinstance(change, Update)
    assert change.object.metadata.annotations == {"kept": "yes"}


def test_isolate_gives_a_joined_project_its_own_vnid() -> None:
    shared = [net_namespace("default", 0), asking("red", 10, "isolate"), net_namespace("blue", 10)]
    assert lines(reconcile(CONFIG, PROJECTS, shared, cursor(1))) == [
        "~ NetNamespace red 11",
        "~ Cursor c 2",
    ]
    world = [net_namespace("default", 0), asking("red", 0, "isolate"), net_namespace("blue", 10)]
    assert lines(reconcile(CONFIG, PROJECTS, world, cursor(1))) == [
        "~ NetNamespace red 11",
        "~ Cursor c 2",
    ]


def test_last_of_isolated_joined_projects_keeps_the_vnid() -> None:
    both = [asking("blue", 10, "isolate"), asking("red", 10, "isolate")]
    assert lines(reconcile(CONFIG, PROJECTS[1:], both, cursor(1))) == [
        "~ NetNamespace blue 11",
        "~ NetNamespace red 10",
        "~ Cursor c 2",
    ]


def test_change_network_requests_are_applied_in_order_of_names() -> None:
    net_namespaces = [asking("blue", 11, "global"), asking("red", 10, "join:blue")]
    assert lines(reconcile(CONFIG, PROJECTS[1:], net_namespaces, cursor(2))) == [
        "~ NetNamespace blue 0",
        "~ NetNamespace red 0",
    ]


def test_default_namespace_cannot_be_isolated() -> None:
    net_namespaces = [asking("default", 0, "isolate")]
    (line,) = lines(reconcile(CONFIG, [namespace("default")], net_namespaces, cursor(0)))
    assert "default stays global" in line
    (problem,) = check(asking("default", 0, "isolate"))
    assert problem.path == f"metadata.annotations[{CHANGE_NETWORK_ANNOTATION}]"


@pytest.mark.parametrize("requested", ["", "Global", "join", "join:", "isolate:red", "global "])
def test_invalid_change_network_annotation_is_rejected(requested: str) -> None:
    (problem,) = check(asking("red", 10, requested))
    assert problem.path == f"metadata.annotations[{CHANGE_NETWORK_ANNOTATION}]"


NAMES = ("amber", "blue", "cyan", "default", "red")
REQUESTS = ("", "", "global", "isolate", *(f"join:{name}" for name in NAMES))


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(["make", "end", *REQUESTS])), max_size=25))
def test_projects_share_a_vnid_only_by_request(steps: list[tuple[str, str]]) -> None:
    """For any sequence of requests, all but one of the projects with one VNID have requested it."""
    alive, net_namespaces, at = {"default"}, dict[str, NetNamespace](), AllocatorCursor()
    askers = set[str]()
    for name, requested in steps:
        if requested == "make":
            alive.add(name)
        elif requested == "end" and name != "default":
            alive.discard(name)
        elif requested and name in net_namespaces:
            net_namespaces[name] = asking(name, net_namespaces[name].netid, requested)
            askers.add(name)
        for outcome in list(reconcile(CONFIG, map(namespace, sorted(alive)), net_namespaces.values(), at)):
            if isinstance(outcome, Create | Update) and isinstance(outcome.object, NetNamespace):
                net_namespaces[outcome.object.metadata.name] = outcome.object
            elif isinstance(outcome, Create | Update) and isinstance(outcome.object, AllocatorCursor):
                at = outcome.object
            elif isinstance(outcome, ForceDelete):
                del net_namespaces[outcome.object.metadata.name]
                askers.discard(outcome.object.metadata.name)
        silent = Counter(
            candidate.netid for candidate in net_namespaces.values() if candidate.metadata.name not in askers
        )
        assert all(count == 1 for count in silent.values())
        assert all(candidate.netid == 0 or candidate.netid >= FIRST_VNID for candidate in net_namespaces.values())


@pytest.mark.parametrize(
    ("requested", "joined", "after"),
    [
        ("join:blue", "", "blue"),
        ("join:green", "", "blue"),
        ("join:default", "", ""),
        ("join:red", "", ""),
        ("isolate", "blue", ""),
        ("global", "blue", ""),
    ],
)
def test_netnamespace_annotation_names_the_joined_project(requested: str, joined: str, after: str) -> None:
    """Without an allocator, the annotation distinguishes VNIDs that are shared on purpose."""
    red = asking("red", 12, requested)
    red.metadata.annotations.update({JOINED_ANNOTATION: joined} if joined else {})
    green = net_namespace("green", 11)
    green.metadata.annotations[JOINED_ANNOTATION] = "blue"
    net_namespaces = [net_namespace("default", 0), net_namespace("blue", 11), green, red]
    changes = reconcile(
        CONFIG, [namespace(candidate.netname) for candidate in net_namespaces], net_namespaces, cursor(3)
    )
    (moved,) = [
        change.object for change in changes if isinstance(change, Update) and isinstance(change.object, NetNamespace)
    ]
    assert moved.metadata.annotations.get(JOINED_ANNOTATION, "") == after
    assert vnid_owner(moved) == (after or "red")
