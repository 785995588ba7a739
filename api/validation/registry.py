"""Defaults and checks by kind: decode, default, check. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic

import msgspec

from api.core.certificates import CertificateSigningRequest
from api.core.config import ConfigMap, Secret, secret_defaults
from api.core.endpoints import Endpoints, EndpointSlice, endpoint_slice_defaults, endpoints_defaults
from api.core.events import Event
from api.core.node import Lease, Namespace, Node
from api.core.pod import Pod
from api.core.services import Service, service_defaults
from api.core.storage import (
    LocalVolume,
    PersistentVolume,
    PersistentVolumeClaim,
    persistent_volume_claim_defaults,
    persistent_volume_defaults,
)
from api.meta import names
from api.meta.schema import MISSING, TOO_LONG, UNKNOWN, FieldError, quoted, shape_errors, without_nulls
from api.meta.types import O, Object, ObjectMeta
from api.network.queries import NodeQuery
from api.network.types import ClusterNetwork, HostSubnet, NetNamespace
from api.validation import config, defaults, network, pod, services, static_pods, volumes


def _unchanged(obj: O) -> O:
    return obj


def _nothing(*_: Any) -> Iterator[Any]:
    return iter(())


MAX_ANNOTATIONS_BYTES = 256 << 10
"""Bytes of all annotations of an object, keys included, as in Kubernetes."""


@dataclass(frozen=True, slots=True)
class KindRules(Generic[O]):
    """The defaults and checks of a kind.

    `default(object)` sets every default, and is idempotent. `validate(object)` yields the errors of an object that has
    the right shape. `validate_update(old, new)` yields the changes that an update must not make. `warnings(object)`
    yields the texts of Warning headers for an object as the client sent it, before defaults and admission: mostly one
    for each field that is stored but has no effect. A warning that an empty object gets means that nothing acts on the
    kind, and docs/kinds.md says so. `validate_name(name)` returns what is wrong with a
    name, an empty string if it is valid. `check_numbers(object)` yields an error for each list or map with too many
    items, before defaults and admission, whose time depends on the numbers. `validate_create(object)` yields the errors
    that only a new object must not have; `validate_update` compares those of an update with the old object.
    """

    default: Callable[[O], O] = _unchanged
    validate: Callable[[O], Iterator[FieldError]] = _nothing
    validate_update: Callable[[O, O], Iterator[FieldError]] = _nothing
    warnings: Callable[[O], Iterator[str]] = _nothing
    validate_name: Callable[[str], str] = names.dns_subdomain_error
    check_numbers: Callable[[O], Iterator[FieldError]] = _nothing
    validate_create: Callable[[O], Iterator[FieldError]] = _nothing


AnyRules = KindRules[Any]


def decode(
    kind: type[O], document: object, rules: KindRules[O] | None = None
) -> tuple[O | None, tuple[FieldError, ...], tuple[str, ...]]:
    """Decode a JSON document as an object of a kind. Return the object, errors, and warnings.

    The object is None if there are errors, unless all errors are unknown fields, which the object then lacks. `rules`
    are required for a kind that is not in RULES.
    """
    document = without_nulls(document)
    errors = tuple(shape_errors(kind, document))
    if any(error.reason != UNKNOWN for error in errors):
        return None, errors, ()
    obj = msgspec.convert(document, kind)
    rules = rules or RULES[kind]
    errors += tuple(check(obj, rules))
    if any(error.reason != UNKNOWN for error in errors):
        return None, errors, ()
    return obj, errors, tuple(rules.warnings(obj))


def check(obj: O, rules: KindRules[O] | None = None) -> Iterator[FieldError]:
    """Yield the errors of an object that has the right shape."""
    rules = rules or RULES[type(obj)]
    yield from _check_kind(obj)
    yield from _check_metadata(obj.metadata, rules.validate_name)
    yield from rules.validate(obj)


def check_update(old: O, new: O, rules: KindRules[O] | None = None) -> Iterator[FieldError]:
    """Yield the changes that an update must not make."""
    yield from (rules or RULES[type(old)]).validate_update(old, new)


def default(obj: O, rules: KindRules[O] | None = None) -> O:
    """Return the object with apiVersion, kind and every default set. Idempotent."""
    rules = rules or RULES[type(obj)]
    return rules.default(msgspec.structs.replace(obj, api_version=obj.API_VERSION, kind=obj.KIND))


def _check_kind(obj: Object) -> Iterator[FieldError]:
    if obj.kind not in {"", obj.KIND}:
        yield FieldError("kind", quoted(obj.kind), f'"{obj.KIND}" is accepted here')
    if obj.api_version not in {"", obj.API_VERSION}:
        yield FieldError("apiVersion", quoted(obj.api_version), f'"{obj.API_VERSION}" is accepted here')


def _check_metadata(meta: ObjectMeta, validate_name: Callable[[str], str]) -> Iterator[FieldError]:
    if not meta.name and not meta.generate_name:
        yield FieldError("metadata.name", '""', "name or generateName is required", MISSING)
    elif meta.name and (error := validate_name(meta.name)):
        yield FieldError("metadata.name", quoted(meta.name), error)
    elif not meta.name and (error := validate_name(f"{meta.generate_name}x")):
        yield FieldError("metadata.generateName", quoted(meta.generate_name), error)
    if meta.namespace and (error := names.dns_label_error(meta.namespace)):
        yield FieldError("metadata.namespace", quoted(meta.namespace), error)
    for key, value in meta.labels.items():
        if error := names.label_key_error(key):
            yield FieldError("metadata.labels", quoted(key), error)
        if error := names.label_value_error(value):
            yield FieldError("metadata.labels", quoted(value), error)
    yield from _check_annotations(meta.annotations)


def _check_annotations(annotations: Mapping[str, str]) -> Iterator[FieldError]:
    for key in annotations:
        if error := names.label_key_error(key.lower()):
            yield FieldError("metadata.annotations", quoted(key), error)
    size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    if size > MAX_ANNOTATIONS_BYTES:
        detail = f"may not be more than {MAX_ANNOTATIONS_BYTES} bytes"
        yield FieldError("metadata.annotations", f"{size} bytes", detail, TOO_LONG)


def _check_pod(obj: Pod) -> Iterator[FieldError]:
    yield from static_pods.check_mirror_pod(obj)
    yield from pod.check_pod(obj)


def _check_pod_update(old: Pod, new: Pod) -> Iterator[FieldError]:
    yield from pod.check_pod_update(old, new)
    yield from static_pods.check_mirror_pod_update(old, new)


RULES: Mapping[type[Object], AnyRules] = {
    Namespace: KindRules(default=defaults.namespace_defaults, validate_name=names.dns_label_error),
    Node: KindRules(validate=network.check_node),
    Pod: KindRules(defaults.pod_defaults, _check_pod, _check_pod_update, pod.pod_warnings),
    ConfigMap: KindRules(validate=config.check_config_map, validate_update=config.check_config_update),
    Secret: KindRules(secret_defaults, config.check_secret, config.check_config_update),
    PersistentVolume: KindRules(
        persistent_volume_defaults, volumes.check_persistent_volume, volumes.check_persistent_volume_update
    ),
    PersistentVolumeClaim: KindRules(
        persistent_volume_claim_defaults,
        volumes.check_persistent_volume_claim,
        volumes.check_persistent_volume_claim_update,
    ),
    LocalVolume: KindRules(validate=volumes.check_local_volume_status),
    HostSubnet: KindRules(validate=network.check_host_subnet, validate_update=network.check_host_subnet_update),
    NetNamespace: KindRules(validate=network.check_net_namespace, validate_update=network.check_net_namespace_update),
    ClusterNetwork: KindRules(validate=network.check_cluster_network),
    NodeQuery: KindRules(validate=network.check_node_query),
    Event: KindRules(validate=config.check_event, validate_update=config.check_event_update),
    Lease: KindRules(),
    Service: KindRules(
        service_defaults,
        services.check_service,
        services.check_service_update,
        validate_name=names.dns_label_error,
        check_numbers=services.check_service_numbers,
    ),
    Endpoints: KindRules(endpoints_defaults, services.check_endpoints),
    EndpointSlice: KindRules(
        endpoint_slice_defaults, services.check_endpoint_slice, services.check_endpoint_slice_update
    ),
    CertificateSigningRequest: KindRules(validate_name=names.path_segment_error),
}
"""The rules of kinds that more than one daemon reads. The master has rules for its own kinds."""

# msgspec inspects a struct type at its first use. If two threads do that at the same time, the process crashes, so all
# types are inspected during import, which happens in one thread.
for _kind in RULES:
    msgspec.json.Decoder(_kind)
