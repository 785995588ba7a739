"""The network on a Kubernetes API server: the writes, their order, and the uniqueness of allocated numbers."""

from __future__ import annotations

import datetime
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from dataclasses import replace as with_fields

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from api.meta.types import Object
from api.network.conflicts import CURSORS_ANNOTATION
from api.network.queries import NodeQuery
from api.network.types import CHANGE_NETWORK_ANNOTATION, ClusterNetwork, HostSubnet, NetNamespace
from master.config import NetworkConfig
from master.controllers.actions import Create, ForceDelete, Update
from master.network_controller.reconcile import ClusterState, Plan, Write, plan
from tests.unit.master.action_lines import CONFIG, NOW, TINY, lines
from tests.unit.master.examples import meta, namespace, net_namespace, node, subnet

EMPTY = ClusterState((), (), None, (), ())


def numbered(network: ClusterNetwork) -> Mapping[str, int]:
    actual: Mapping[str, int] = json.loads(network.metadata.annotations[CURSORS_ANNOTATION])
    return actual


def network_of(done: Plan) -> ClusterNetwork:
    assert done.network is not None
    assert isinstance(done.network.object, ClusterNetwork)
    return done.network.object


def first(seen: ClusterState, config: NetworkConfig = CONFIG) -> tuple[ClusterNetwork, ClusterState]:
    """Return the network after the first pass over an empty cluster."""
    network = network_of(plan(config, EMPTY, NOW))
    network = replace(network, metadata=replace(network.metadata, resource_version="1", uid="u"))
    return network, with_fields(seen, network=network)


def test_first_pass_creates_the_cluster_network_with_its_cursors() -> None:
    done = plan(CONFIG, EMPTY, NOW)
    assert isinstance(done.network, Create)
    assert numbered(network_of(done)) == {"subnets": 0, "vnids": 0}
    assert done.other_writes == ()


def test_cursors_are_stored_on_the_cluster_network_and_namespaces_not_changed() -> None:
    _, seen = first(ClusterState((namespace("red"), namespace("default")), (node("a"),), None, (), ()))
    done = plan(CONFIG, seen, NOW)
    assert isinstance(done.network, Update)
    assert numbered(network_of(done)) == {"subnets": 1, "vnids": 1}
    assert lines(done.other_writes) == [
        "+ HostSubnet a 10.128.0.0/23 10.245.2.3",
        "+ NetNamespace default 0",
        "+ NetNamespace red 10",
    ]


def test_reconciled_state_causes_no_write() -> None:
    network, seen = first(ClusterState((namespace("red"),), (node("a"),), None, (), ()))
    done = plan(CONFIG, seen, NOW)
    settled = with_fields(
        seen,
        network=network_of(done),
        host_subnets=(subnet("a", "10.128.0.0/23"),),
        net_namespaces=(net_namespace("red", 10),),
    )
    assert plan(CONFIG, settled, NOW) == Plan(None, (), {})
    assert network != network_of(done)


def test_unreadable_cursors_are_reset() -> None:
    network, seen = first(ClusterState((namespace("red"),), (), None, (), (net_namespace("blue", 10),)))
    for text in ("", "[]", '{"vnids": "x"}', "7"):
        metadata = replace(network.metadata, annotations={CURSORS_ANNOTATION: text})
        done = plan(CONFIG, with_fields(seen, network=replace(network, metadata=metadata)), NOW)
        assert lines(done.other_writes) == ["- NetNamespace blue 10", "+ NetNamespace red 11"]


def test_younger_project_with_a_duplicate_vnid_gets_a_new_one() -> None:
    older = replace(net_namespace("red", 10), metadata=meta("red", creation_timestamp="2025-01-01T00:00:00Z"))
    projects = (namespace("red"), namespace("blue"), namespace("new"))
    _, seen = first(ClusterState(projects, (), None, (), (older, net_namespace("blue", 10))))
    done = plan(CONFIG, seen, NOW)
    assert lines(done.other_writes) == ["~ NetNamespace blue 11"]
    assert done.warnings == {"netnamespace blue": "it had the VNID 10 of red; it gets 11"}


def test_joined_projects_move_with_their_vnid() -> None:
    asking = replace(
        net_namespace("green", 12), metadata=meta("green", annotations={CHANGE_NETWORK_ANNOTATION: "join:blue"})
    )
    projects = tuple(map(namespace, ("red", "blue", "green")))
    _, seen = first(ClusterState(projects, (), None, (), (net_namespace("blue", 10), asking, net_namespace("red", 11))))
    (change,) = plan(CONFIG, seen, NOW).other_writes
    joined = change.object
    assert isinstance(joined, NetNamespace)
    older = replace(net_namespace("red", 10), metadata=meta("red", creation_timestamp="2025-01-01T00:00:00Z"))
    done = plan(CONFIG, with_fields(seen, net_namespaces=(net_namespace("blue", 10), joined, older)), NOW)
    assert lines(done.other_writes) == ["~ NetNamespace blue 11", "~ NetNamespace green 11"]


def test_younger_node_with_a_duplicate_subnet_gets_a_new_one() -> None:
    nodes = (node("a"), node("b", ip="10.245.2.4"))
    older = subnet("b", "10.128.0.0/22", ip="10.245.2.4")
    older = replace(older, metadata=replace(older.metadata, creation_timestamp="2025-01-01T00:00:00Z"))
    _, seen = first(ClusterState((), nodes, None, (subnet("a", "10.128.2.0/23"), older), ()))
    done = plan(CONFIG, seen, NOW)
    assert lines(done.other_writes) == ["- HostSubnet a 10.128.2.0/23 10.245.2.3"]
    after = plan(CONFIG, with_fields(seen, host_subnets=(older,)), NOW)
    assert lines(after.other_writes) == ["+ HostSubnet a 10.128.4.0/23 10.245.2.3"]


def test_conflicting_manual_host_subnet_is_reported_and_kept() -> None:
    over_another = subnet("x", "10.128.0.0/23", ip="10.9.9.9", uid="")
    at_anothers = subnet("y", "10.128.8.0/23", ip="10.245.2.3", uid="")
    _, seen = first(ClusterState((), (node("a"),), None, (subnet("a", "10.128.0.0/23"), over_another, at_anothers), ()))
    done = plan(CONFIG, seen, NOW)
    assert done.other_writes == ()
    assert set(done.warnings) == {"hostsubnet x", "hostsubnet y", "node a"}


def test_invalid_network_objects_are_reported_and_kept() -> None:
    bad = (replace(subnet("a", "10.128.0.7/23"), host="b"), replace(net_namespace("red", 10), netname="blue"))
    _, seen = first(ClusterState((namespace("red"),), (node("a"),), None, (bad[0],), (bad[1],)))
    done = plan(CONFIG, seen, NOW)
    assert (done.network, done.other_writes) == (None, ())
    assert set(done.warnings) == {"hostsubnet a", "netnamespace red"}


def test_object_that_fails_is_reported_and_keeps_no_other_from_being_reconciled() -> None:
    query = NodeQuery(metadata=replace(meta("poisoned"), creation_timestamp=7))
    _, seen = first(ClusterState((namespace("red"),), (), None, (), (), (query,)))
    done = plan(CONFIG, seen, NOW)
    assert lines(done.other_writes) == ["+ NetNamespace red 10"]
    assert list(done.warnings) == ["nodequery poisoned"]
    assert done.warnings["nodequery poisoned"].startswith("not reconciled: TypeError(")


# --- two at once, with what each of them has seen so far --------------------------------------------------------------


@dataclass
class Server:
    """An API server that checks two things: names are unique, and a write with an old resource version is rejected."""

    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    revisions: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def write(self, write: Write) -> bool:
        key = write.object.KIND, write.object.metadata.name
        there = self.objects.get(key)
        before = write.before if isinstance(write, Update) else write.object
        wanted = None if isinstance(write, Create) else before.metadata.resource_version
        if (there.metadata.resource_version if there else None) != wanted:
            return False
        if isinstance(write, ForceDelete):
            del self.objects[key]
        else:
            revision = next(self.revisions)
            created = (
                write.object.metadata.creation_timestamp or (NOW + datetime.timedelta(seconds=revision)).isoformat()
            )
            stamped = replace(write.object.metadata, resource_version=str(revision), creation_timestamp=created)
            self.objects[key] = replace(write.object, metadata=stamped)
        return True

    def all(self, kind: str) -> tuple[object, ...]:
        return tuple(obj for (key_kind, _), obj in self.objects.items() if key_kind == kind)


@dataclass
class Actor:
    """One that believes to be in charge: it sees each kind as it was when it looked, and writes in its own time."""

    server: Server
    config: NetworkConfig
    seen: ClusterState = EMPTY
    todo: list[Write] = field(default_factory=list)

    def look(self, kinds: int, world: ClusterState) -> None:
        """Refresh some kinds of the cached state (bits of `kinds`)."""
        if kinds & 1:
            self.seen = with_fields(self.seen, namespaces=world.namespaces, nodes=world.nodes)
        if kinds & 2:
            network = self.server.objects.get(("ClusterNetwork", "default"))
            self.seen = with_fields(self.seen, network=network)  # type: ignore[arg-type]
        if kinds & 4:
            self.seen = with_fields(self.seen, host_subnets=self.server.all("HostSubnet"))  # type: ignore[arg-type]
            self.seen = with_fields(self.seen, net_namespaces=self.server.all("NetNamespace"))  # type: ignore[arg-type]

    def decide(self) -> None:
        """Plan the writes. They replace the pending ones only if the network with the allocated numbers is stored."""
        done = plan(self.config, self.seen, NOW)
        if done.network is None or self.server.write(done.network):
            self.todo = list(done.other_writes)

    def act(self) -> None:
        if self.todo:
            self.server.write(self.todo.pop(0))


def doubles(server: Server) -> list[object]:
    """Numbers that two have."""
    vnids = [obj.netid for obj in server.all("NetNamespace") if isinstance(obj, NetNamespace) and obj.netid]
    subnets = [obj.subnet for obj in server.all("HostSubnet") if isinstance(obj, HostSubnet)]
    return [number for number in (*vnids, *subnets) if (*vnids, *subnets).count(number) > 1]


STEP = st.tuples(st.integers(0, 1), st.sampled_from(("look", "decide", "act", "turn")), st.integers(1, 7))


@settings(max_examples=500, deadline=None)
@given(steps=st.lists(STEP, min_size=8, max_size=60))
def test_two_concurrent_leaders_allocate_no_number_twice(steps: list[tuple[int, str, int]]) -> None:
    """Projects and nodes come and go (bits of the number of a `turn`)."""
    server = Server()
    actors = (Actor(server, CONFIG), Actor(server, CONFIG))
    actors[0].decide()
    world = EMPTY
    for actor_number, what, number in steps:
        actor = actors[actor_number]
        if what == "look":
            actor.look(number, world)
        elif what == "decide":
            actor.decide()
        elif what == "act":
            actor.act()
        else:
            here = [index for index in range(3) if number & 1 << index]
            nodes = tuple(node(f"n{index}", ip=f"10.245.2.{index + 3}") for index in here)
            world = with_fields(world, namespaces=tuple(namespace(f"p{index}") for index in here), nodes=nodes)
        assert not doubles(server)


@settings(max_examples=200, deadline=None)
@given(steps=st.lists(STEP, max_size=40), doubled=st.booleans())
def test_any_state_is_repaired_by_one_leader(steps: list[tuple[int, str, int]], doubled: bool) -> None:
    """Also with so few subnets that numbers come round at once, and with numbers that were written by hand."""
    server = Server()
    actors = (Actor(server, TINY), Actor(server, TINY))
    for actor_number, what, number in steps:
        actor = actors[actor_number]
        projects = tuple(namespace(f"p{index}") for index in range(number))
        world = ClusterState(projects, (node("a"), node("b", ip="10.245.2.4")), None, (), ())
        if what == "look":
            actor.look(number, world)
        elif what == "decide":
            actor.decide()
        else:
            actor.act()
    if doubled:
        server.write(Create(replace(net_namespace("p0", 10), metadata=meta("p0", creation_timestamp=None))))
        server.write(Create(replace(net_namespace("p1", 10), metadata=meta("p1", creation_timestamp=None))))
        server.write(Create(replace(subnet("b", "10.1.0.0/25", ip="10.245.2.4"), subnet="10.1.0.0/24")))
    world = ClusterState((namespace("p0"), namespace("p1")), (node("a"), node("b", ip="10.245.2.4")), None, (), ())
    alone = Actor(server, TINY)
    for _ in range(8):
        alone.look(7, world)
        alone.decide()
        while alone.todo:
            alone.act()
    assert not doubles(server)
    assert {name for kind, name in server.objects if kind == "NetNamespace"} == {"p0", "p1"}
