"""Document → object, or every problem at once. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec

from api import (
    configuration,
    defaults,
    endpoints,
    events,
    names,
    networks,
    pods,
    query_checks,
    service_checks,
    services,
    static_pods,
    storage,
)
from api.configuration import ConfigMap, Secret
from api.endpoints import Endpoints, EndpointSlice
from api.leases import Lease
from api.objects import ClusterNetwork, HostSubnet, Namespace, NetNamespace, Node, O, Object, ObjectMeta, Pod
from api.queries import NodeQuery
from api.rules import AnyRules, Rules
from api.schema import MISSING, UNKNOWN, Problem, mismatches, shown, without_nulls
from api.services import Service
from api.signing_requests import CertificateSigningRequest
from api.storage import PersistentVolume, PersistentVolumeClaim


def decode(
    kind: type[O], document: object, rules: Rules[O] | None = None
) -> tuple[O | None, tuple[Problem, ...], tuple[str, ...]]:
    """Read a JSON document as an object of this kind.

    Returns the object, every problem, and warnings about fields that are kept but not acted on. There is an object
    when there are no problems, or none but unknown fields, which it then lacks. `rules` are those of a kind that is
    not in RULES.
    """
    document = without_nulls(document)
    shape = tuple(mismatches(kind, document))
    if any(problem.reason != UNKNOWN for problem in shape):
        return None, shape, ()
    obj, rules = msgspec.convert(document, kind), rules or RULES[kind]
    problems = shape + tuple(check(obj, rules))
    if any(problem.reason != UNKNOWN for problem in problems):
        return None, problems, ()
    return obj, problems, tuple(rules.warnings(obj))


def check(obj: O, rules: Rules[O] | None = None) -> Iterator[Problem]:
    """Every problem in the meaning of an object whose shape is right."""
    rules = rules or RULES[type(obj)]
    yield from _check_kind(obj)
    yield from _check_metadata(obj.metadata, rules.name)
    yield from rules.check(obj)


def immutable(old: O, new: O, rules: Rules[O] | None = None) -> Iterator[Problem]:
    """What an update changes although it may not."""
    yield from (rules or RULES[type(old)]).immutable(old, new)


def default(obj: O, rules: Rules[O] | None = None) -> O:
    """The object with its kind named and every default written out; doing it twice changes nothing."""
    rules = rules or RULES[type(obj)]
    return rules.default(msgspec.structs.replace(obj, api_version=obj.API_VERSION, kind=obj.KIND))


def _check_kind(obj: Object) -> Iterator[Problem]:
    if obj.kind not in {"", obj.KIND}:
        yield Problem("kind", shown(obj.kind), f'"{obj.KIND}" is accepted here')
    if obj.api_version not in {"", obj.API_VERSION}:
        yield Problem("apiVersion", shown(obj.api_version), f'"{obj.API_VERSION}" is accepted here')


def _check_metadata(meta: ObjectMeta, syntax: Callable[[str], str]) -> Iterator[Problem]:
    if not meta.name and not meta.generate_name:
        yield Problem("metadata.name", '""', "name or generateName is required", MISSING)
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
            yield Problem("metadata.labels", shown(value), names.label_value(value))
    for key in meta.annotations:
        if names.label_key(key.lower()):
            yield Problem("metadata.annotations", shown(key), names.label_key(key.lower()))


def _check_pod(pod: Pod) -> Iterator[Problem]:
    yield from static_pods.check_mirror(pod)
    yield from pods.check(pod)


def _immutable_pod(old: Pod, new: Pod) -> Iterator[Problem]:
    yield from pods.immutable(old, new)
    yield from static_pods.immutable(old, new)


RULES: Mapping[type[Object], AnyRules] = {
    Namespace: Rules(default=defaults.namespace_defaults, name=names.dns_label),
    Node: Rules(check=networks.check_node),
    Pod: Rules(defaults.pod_defaults, _check_pod, _immutable_pod, pods.warnings),
    ConfigMap: Rules(check=configuration.check_config_map, immutable=configuration.immutable),
    Secret: Rules(configuration.defaulted, configuration.check_secret, configuration.immutable),
    PersistentVolume: Rules(storage.defaulted_volume, storage.check_volume, storage.immutable_volume),
    PersistentVolumeClaim: Rules(storage.defaulted_claim, storage.check_claim, storage.immutable_claim),
    HostSubnet: Rules(check=networks.check_host_subnet, immutable=networks.immutable_host_subnet),
    NetNamespace: Rules(check=networks.check_net_namespace, immutable=networks.immutable_net_namespace),
    ClusterNetwork: Rules(check=networks.check_cluster_network),
    NodeQuery: Rules(check=query_checks.check),
    events.Event: Rules(check=events.check, immutable=events.immutable),
    Lease: Rules(),
    Service: Rules(services.defaulted, service_checks.check, service_checks.immutable, name=names.service_name),
    Endpoints: Rules(endpoints.defaulted_endpoints, endpoints.check_endpoints),
    EndpointSlice: Rules(endpoints.defaulted_slice, endpoints.check_slice, endpoints.immutable_slice),
    CertificateSigningRequest: Rules(name=names.path_segment),
}
"""Of the kinds that more than one daemon reads; the master's own kinds bring theirs."""

# Two threads at once must not be the first that read a struct: msgspec, which learns then what the struct is, ends the
# process. What an import needs is done by one thread.
for _kind in RULES:
    msgspec.json.Decoder(_kind)
