"""Defaults and checks by kind: decode, default, check. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic

import msgspec

from api.core import config as core_config
from api.core import endpoints, events, services, storage
from api.core.certificates import CertificateSigningRequest
from api.core.config import ConfigMap, Secret
from api.core.endpoints import Endpoints, EndpointSlice
from api.core.node import Lease, Namespace, Node
from api.core.pod import Pod
from api.core.services import Service
from api.core.storage import PersistentVolume, PersistentVolumeClaim
from api.meta import names
from api.meta.schema import MISSING, UNKNOWN, FieldError, quoted, shape_errors, without_nulls
from api.meta.types import O, Object, ObjectMeta
from api.network.queries import NodeQuery
from api.network.types import ClusterNetwork, HostSubnet, NetNamespace
from api.validation import config, defaults, network, static_pods, volumes
from api.validation import pod as pods
from api.validation import services as service_checks
from api.validation import services as validation_services


def _same(item: O) -> O:
    return item


def _none(*_: Any) -> Iterator[Any]:
    return iter(())


@dataclass(frozen=True, slots=True)
class KindRules(Generic[O]):
    """The defaults and the validation of one kind.

    `default(object)` fills in every default and is idempotent. `validate(object)` yields every error of an object that
    has been decoded. `validate_update(old, new)` yields the forbidden changes of an update. `warnings(object)` yields
    what is stored without effect. `validate_name` returns what is wrong with a name, or an empty string.
    """

    default: Callable[[O], O] = _same
    validate: Callable[[O], Iterator[FieldError]] = _none
    validate_update: Callable[[O, O], Iterator[FieldError]] = _none
    warnings: Callable[[O], Iterator[str]] = _none
    validate_name: Callable[[str], str] = names.dns_subdomain_error


AnyRules = KindRules[Any]


def decode(
    kind: type[O], document: object, rules: KindRules[O] | None = None
) -> tuple[O | None, tuple[FieldError, ...], tuple[str, ...]]:
    """Read a JSON document as an object of this kind.

    Returns the object, every problem, and warnings about fields that are kept but not acted on. There is an object
    when there are no problems, or none but unknown fields, which it then lacks. `rules` are those of a kind that is
    not in RULES.
    """
    document = without_nulls(document)
    shape = tuple(shape_errors(kind, document))
    if any(problem.reason != UNKNOWN for problem in shape):
        return None, shape, ()
    obj, rules = msgspec.convert(document, kind), rules or RULES[kind]
    problems = shape + tuple(check(obj, rules))
    if any(problem.reason != UNKNOWN for problem in problems):
        return None, problems, ()
    return obj, problems, tuple(rules.warnings(obj))


def check(obj: O, rules: KindRules[O] | None = None) -> Iterator[FieldError]:
    """Every problem in the meaning of an object whose shape is right."""
    rules = rules or RULES[type(obj)]
    yield from _check_kind(obj)
    yield from _check_metadata(obj.metadata, rules.validate_name)
    yield from rules.validate(obj)


def immutable(old: O, new: O, rules: KindRules[O] | None = None) -> Iterator[FieldError]:
    """What an update changes although it may not."""
    yield from (rules or RULES[type(old)]).validate_update(old, new)


def default(obj: O, rules: KindRules[O] | None = None) -> O:
    """The object with its kind named and every default written out; doing it twice changes nothing."""
    rules = rules or RULES[type(obj)]
    return rules.default(msgspec.structs.replace(obj, api_version=obj.API_VERSION, kind=obj.KIND))


def _check_kind(obj: Object) -> Iterator[FieldError]:
    if obj.kind not in {"", obj.KIND}:
        yield FieldError("kind", quoted(obj.kind), f'"{obj.KIND}" is accepted here')
    if obj.api_version not in {"", obj.API_VERSION}:
        yield FieldError("apiVersion", quoted(obj.api_version), f'"{obj.API_VERSION}" is accepted here')


def _check_metadata(meta: ObjectMeta, syntax: Callable[[str], str]) -> Iterator[FieldError]:
    if not meta.name and not meta.generate_name:
        yield FieldError("metadata.name", '""', "name or generateName is required", MISSING)
    elif meta.name and syntax(meta.name):
        yield FieldError("metadata.name", quoted(meta.name), syntax(meta.name))
    elif not meta.name and syntax(f"{meta.generate_name}x"):
        yield FieldError("metadata.generateName", quoted(meta.generate_name), syntax(f"{meta.generate_name}x"))
    if meta.namespace and names.dns_label_error(meta.namespace):
        yield FieldError("metadata.namespace", quoted(meta.namespace), names.dns_label_error(meta.namespace))
    for key, value in meta.labels.items():
        if names.label_key_error(key):
            yield FieldError("metadata.labels", quoted(key), names.label_key_error(key))
        if names.label_value_error(value):
            yield FieldError("metadata.labels", quoted(value), names.label_value_error(value))
    for key in meta.annotations:
        if names.label_key_error(key.lower()):
            yield FieldError("metadata.annotations", quoted(key), names.label_key_error(key.lower()))


def _check_pod(pod: Pod) -> Iterator[FieldError]:
    yield from static_pods.check_mirror(pod)
    yield from pods.check_pod(pod)


def _immutable_pod(old: Pod, new: Pod) -> Iterator[FieldError]:
    yield from pods.immutable(old, new)
    yield from static_pods.immutable(old, new)


RULES: Mapping[type[Object], AnyRules] = {
    Namespace: KindRules(default=defaults.namespace_defaults, validate_name=names.dns_label_error),
    Node: KindRules(validate=network.check_node),
    Pod: KindRules(defaults.pod_defaults, _check_pod, _immutable_pod, pods.warnings),
    ConfigMap: KindRules(validate=config.check_config_map, validate_update=config.immutable_config),
    Secret: KindRules(core_config.defaulted, config.check_secret, config.immutable_config),
    PersistentVolume: KindRules(storage.defaulted_volume, volumes.check_volume, volumes.immutable_volume),
    PersistentVolumeClaim: KindRules(storage.defaulted_claim, volumes.check_claim, volumes.immutable_claim),
    HostSubnet: KindRules(validate=network.check_host_subnet, validate_update=network.immutable_host_subnet),
    NetNamespace: KindRules(validate=network.check_net_namespace, validate_update=network.immutable_net_namespace),
    ClusterNetwork: KindRules(validate=network.check_cluster_network),
    NodeQuery: KindRules(validate=network.check_node_query),
    events.Event: KindRules(validate=config.check_event, validate_update=config.immutable_event),
    Lease: KindRules(),
    Service: KindRules(
        services.defaulted,
        service_checks.check_service,
        service_checks.immutable,
        validate_name=names.dns_1035_label_error,
    ),
    Endpoints: KindRules(endpoints.defaulted_endpoints, validation_services.check_endpoints),
    EndpointSlice: KindRules(
        endpoints.defaulted_slice, validation_services.check_slice, validation_services.immutable_slice
    ),
    CertificateSigningRequest: KindRules(validate_name=names.path_segment_error),
}
"""Of the kinds that more than one daemon reads; the master's own kinds bring theirs."""

# Two threads at once must not be the first that read a struct: msgspec, which learns then what the struct is, ends the
# process. What an import needs is done by one thread.
for _kind in RULES:
    msgspec.json.Decoder(_kind)
