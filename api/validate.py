"""Document → object, or every problem at once. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from ipaddress import IPv4Address, IPv4Network
from typing import Any, TypeVar

import msgspec

from api import configuration, events, lanes, names, pods, static_pods, storage, traces
from api.configuration import ConfigMap, Secret
from api.objects import (
    ASSIGN_SUBNET,
    PLUGIN_MULTITENANT,
    PLUGIN_SUBNET,
    ClusterNetwork,
    HostSubnet,
    Namespace,
    NetNamespace,
    Node,
    Object,
    ObjectMeta,
    Pod,
)
from api.queries import CaptureQuestion, NodeQuery, TraceQuestion
from api.schema import (
    FORBIDDEN,
    INVALID,
    MISSING,
    NOT_SUPPORTED,
    UNKNOWN,
    Problem,
    mismatches,
    shown,
    without_nulls,
)
from api.storage import PersistentVolume, PersistentVolumeClaim

O = TypeVar("O", bound=Object)

LAST_VNID = 0xFFFFFF
MOST_PACKETS, MOST_SECONDS = 1000, 60
MTU_RANGE = range(576, 65537)


def decode(kind: type[O], document: object) -> tuple[O | None, tuple[Problem, ...], tuple[str, ...]]:
    """Read a JSON document as an object of this kind.

    Returns the object, every problem, and warnings about fields that are kept but not acted on. There is an object
    when there are no problems, or none but unknown fields, which it then lacks.
    """
    document = without_nulls(document)
    shape = tuple(mismatches(kind, document))
    if any(problem.reason != UNKNOWN for problem in shape):
        return None, shape, ()
    obj = msgspec.convert(document, kind)
    problems = shape + tuple(check(obj))
    if any(problem.reason != UNKNOWN for problem in problems):
        return None, problems, ()
    return obj, problems, tuple(pods.warnings(obj)) if isinstance(obj, Pod) else ()


def check(obj: Object) -> Iterator[Problem]:
    """Every problem in the meaning of an object whose shape is right."""
    yield from _check_kind(obj)
    yield from _check_metadata(obj.metadata, names.dns_label if isinstance(obj, Namespace) else names.dns_subdomain)
    if isinstance(obj, Pod):
        yield from static_pods.check_mirror(obj)
    for kind, rules in _RULES.items():
        if isinstance(obj, kind):
            yield from rules(obj)


def immutable(old: O, new: O) -> Iterator[Problem]:
    """What an update changes although it may not."""
    if isinstance(old, Pod) and isinstance(new, Pod):
        yield from pods.immutable(old, new)
        yield from static_pods.immutable(old, new)
    if isinstance(old, events.Event) and isinstance(new, events.Event):
        yield from events.immutable(old, new)
    if isinstance(old, ConfigMap | Secret) and isinstance(new, ConfigMap | Secret):
        yield from configuration.immutable(old, new)
    if isinstance(old, PersistentVolume) and isinstance(new, PersistentVolume):
        yield from storage.immutable_volume(old, new)
    if isinstance(old, PersistentVolumeClaim) and isinstance(new, PersistentVolumeClaim):
        yield from storage.immutable_claim(old, new)
    if isinstance(old, NetNamespace) and isinstance(new, NetNamespace) and old.netname != new.netname:
        yield Problem("netname", shown(new.netname), "field is immutable", FORBIDDEN)
    if isinstance(old, HostSubnet) and isinstance(new, HostSubnet) and old.subnet != new.subnet:
        yield Problem("subnet", shown(new.subnet), "field is immutable; delete the object to get another", FORBIDDEN)


def _check_kind(obj: Object) -> Iterator[Problem]:
    if obj.kind not in {"", obj.KIND}:
        yield Problem("kind", shown(obj.kind), f'"{obj.KIND}" is accepted here')
    if obj.api_version not in {"", obj.API_VERSION}:
        yield Problem("apiVersion", shown(obj.api_version), f'"{obj.API_VERSION}" is accepted here')


def _check_metadata(meta: ObjectMeta, syntax: Callable[[str], str]) -> Iterator[Problem]:
    if not meta.name and not meta.generate_name:
        yield Problem("metadata.name", '""', "a name or a generateName is required", MISSING)
    elif meta.name and syntax(meta.name):
        yield Problem("metadata.name", shown(meta.name), syntax(meta.name))
    elif not meta.name and syntax(f"{meta.generate_name}x"):
        yield Problem("metadata.generateName", shown(meta.generate_name), syntax(f"{meta.generate_name}x"))
    if meta.namespace and names.dns_label(meta.namespace):
        yield Problem("metadata.namespace", shown(meta.namespace), names.dns_label(meta.namespace))
    for key, value in meta.labels.items():
        if names.label_key(key):
            yield Problem("metadata.labels", shown(key), names.label_key(key))
        if names.label_value(value):
            yield Problem(f"metadata.labels[{key}]", shown(value), names.label_value(value))
    for key in meta.annotations:
        if names.label_key(key.lower()):
            yield Problem("metadata.annotations", shown(key), names.label_key(key.lower()))


def _check_node(node: Node) -> Iterator[Problem]:
    for number, address in enumerate(node.status.addresses):
        if address.type == "InternalIP":
            yield from _check_address(f"status.addresses[{number}].address", address.address)


def _check_host_subnet(subnet: HostSubnet) -> Iterator[Problem]:
    if subnet.host != subnet.metadata.name:
        yield Problem("host", shown(subnet.host), f"must equal metadata.name, {shown(subnet.metadata.name)}")
    yield from _check_address("hostIP", subnet.host_ip)
    if subnet.subnet or ASSIGN_SUBNET not in subnet.metadata.annotations:
        yield from _check_network("subnet", subnet.subnet)


def _check_net_namespace(lane: NetNamespace) -> Iterator[Problem]:
    if lane.netname != lane.metadata.name:
        yield Problem("netname", shown(lane.netname), f"must equal metadata.name, {shown(lane.metadata.name)}")
    if not 0 <= lane.netid <= LAST_VNID:
        yield Problem("netid", shown(lane.netid), f"0 to {LAST_VNID} is accepted")
    wish = lane.metadata.annotations.get(lanes.CHANGE_NETWORK)
    if wish is not None:
        yield from _check_lane_request(lane, wish)


def _check_lane_request(lane: NetNamespace, wish: str) -> Iterator[Problem]:
    path = f"metadata.annotations[{lanes.CHANGE_NETWORK}]"
    try:
        request = lanes.parse(wish)
    except lanes.BadRequest as error:
        yield Problem(path, shown(wish), str(error), NOT_SUPPORTED)
        return
    if lane.metadata.name == "default" and request.verb != "global":
        yield Problem(path, shown(wish), "default stays global: the whole cluster relies on it", FORBIDDEN)


def _check_cluster_network(wish: ClusterNetwork) -> Iterator[Problem]:
    ranges: dict[str, Any] = {"network": wish.network, "serviceNetwork": wish.service_network}
    ranges |= {f"clusterNetworks[{n}].CIDR": entry.cidr for n, entry in enumerate(wish.cluster_networks)}
    for path, text in ranges.items():
        yield from _check_network(path, text)
    if wish.plugin_name not in {PLUGIN_SUBNET, PLUGIN_MULTITENANT}:
        accepted = f'"{PLUGIN_SUBNET}" or "{PLUGIN_MULTITENANT}" is accepted'
        yield Problem("pluginName", shown(wish.plugin_name), accepted, NOT_SUPPORTED)
    if wish.mtu is not None and wish.mtu not in MTU_RANGE:
        yield Problem("mtu", shown(wish.mtu), "576 to 65536 is accepted")
    if wish.vxlan_port is not None and not 1 <= wish.vxlan_port <= 65535:
        yield Problem("vxlanPort", shown(wish.vxlan_port), "a port is 1 to 65535")
    if not any(list(_check_network("", text)) for text in ranges.values()):
        yield from _check_layout(wish)


def _check_layout(wish: ClusterNetwork) -> Iterator[Problem]:
    network, services = IPv4Network(wish.network), IPv4Network(wish.service_network)
    most = 32 - network.prefixlen
    if not 2 <= wish.hostsubnetlength <= most:
        yield Problem("hostsubnetlength", shown(wish.hostsubnetlength), f"2 to {most} host bits are accepted")
    if network.overlaps(services):
        yield Problem("serviceNetwork", shown(wish.service_network), f"must not overlap network {wish.network}")


def _check_node_query(query: NodeQuery) -> Iterator[Problem]:
    if not query.spec.node_name:
        yield Problem("spec.nodeName", '""', "the node that is asked is required", MISSING)
    asked, capture = query.spec.trace, query.spec.capture
    if [asked is not None, query.spec.report, capture is not None].count(True) != 1:
        yield Problem("spec", "given", "exactly one of trace, report and capture is accepted")
    if capture is not None:
        yield from _check_capture(capture)
    if asked is not None:
        yield from _check_trace(asked)


def _check_capture(asked: CaptureQuestion) -> Iterator[Problem]:
    yield from _check_address("spec.capture.pod", asked.pod)
    for path, value, most in (("packets", asked.packets, MOST_PACKETS), ("seconds", asked.seconds, MOST_SECONDS)):
        if not 1 <= value <= most:
            yield Problem(f"spec.capture.{path}", shown(value), f"1 to {most} is accepted")


def _check_trace(asked: TraceQuestion) -> Iterator[Problem]:
    for problem in traces.check(asked):
        yield problem._replace(path=f"spec.trace.{problem.path}")


def _check_address(path: str, text: str) -> Iterator[Problem]:
    try:
        address = IPv4Address(text)
    except ValueError:
        yield Problem(path, shown(text), "an IPv4 address is accepted")
        return
    if address.is_loopback or address.is_unspecified:
        yield Problem(path, shown(text), "an address that other nodes can reach is accepted")


def _check_network(path: str, text: str) -> Iterator[Problem]:
    try:
        IPv4Network(text)
    except ValueError as error:
        yield Problem(path, shown(text), f'a network such as "10.128.0.0/14" is accepted ({error})', INVALID)


_RULES: dict[type[Object], Callable[[Any], Iterator[Problem]]] = {
    Node: _check_node,
    Pod: pods.check,
    ConfigMap: configuration.check_config_map,
    Secret: configuration.check_secret,
    PersistentVolume: storage.check_volume,
    PersistentVolumeClaim: storage.check_claim,
    HostSubnet: _check_host_subnet,
    NetNamespace: _check_net_namespace,
    ClusterNetwork: _check_cluster_network,
    NodeQuery: _check_node_query,
    events.Event: events.check,
}
