"""ResourceClaim, ResourceClaimTemplate and DeviceClass: devices that pods ask for. Kept and served. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec.structs import replace

from api.core.placement import NodeSelector
from api.meta import names
from api.meta.schema import FORBIDDEN, FieldError
from api.meta.types import Json, Object, ObjectMeta, StatusCondition, Value, merge_keys
from api.validation.registry import KindRules
from master.resources.devices import (
    MAX_CONFIGURATIONS,
    DeviceClaim,
    DeviceSelector,
    DeviceToleration,
    OpaqueDeviceConfiguration,
    Quantities,
    check_claim,
    check_configuration,
    check_selectors,
    defaulted_claim,
)
from master.resources.printing import AGE, NAME
from master.resources.resource import Column, Resource
from master.resources.validation import immutable, max_items, required

UNHEEDED = "nobody gives out devices: pods with resourceClaims are refused"


class ResourceClaimSpec(Value, frozen=True):
    """The requests for devices."""

    devices: DeviceClaim = DeviceClaim()


class DeviceRequestAllocationResult(Value, frozen=True):
    """The device that was given for a request."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    share_id: str | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: Quantities = {}


class DeviceAllocationConfiguration(Value, frozen=True):
    """Parameters for the devices that were given; `source` is FromClass or FromClaim."""

    source: str = ""
    requests: tuple[str, ...] = ()
    opaque: OpaqueDeviceConfiguration | None = None


class DeviceAllocationResult(Value, frozen=True):
    """All devices that were given."""

    results: tuple[DeviceRequestAllocationResult, ...] = ()
    config: tuple[DeviceAllocationConfiguration, ...] = ()


class AllocationResult(Value, frozen=True):
    """The allocated devices, and the nodes where they can be used."""

    devices: DeviceAllocationResult = DeviceAllocationResult()
    node_selector: NodeSelector | None = None
    allocation_timestamp: str | None = None


class ResourceClaimConsumerReference(Value, frozen=True):
    """A user of the claim."""

    resource: str
    name: str
    uid: str
    api_group: str = ""


class NetworkDeviceData(Value, frozen=True):
    """The device as an interface of a network."""

    interface_name: str = ""
    ips: tuple[str, ...] = ()
    hardware_address: str = ""


class AllocatedDeviceStatus(Value, frozen=True):
    """The status of a device, as its driver reports it."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str | None = msgspec.field(default=None, name="shareID")
    conditions: Annotated[tuple[StatusCondition, ...], merge_keys("type")] = ()
    data: Json = None
    network_data: NetworkDeviceData | None = None


class ResourceClaimStatus(Value, frozen=True):
    """The allocation, and the users of the claim."""

    allocation: AllocationResult | None = None
    reserved_for: Annotated[tuple[ResourceClaimConsumerReference, ...], merge_keys("uid")] = ()
    devices: Annotated[tuple[AllocatedDeviceStatus, ...], merge_keys("driver", "device", "pool", "shareID")] = ()


class ResourceClaim(Object, frozen=True):
    """A request for devices, and the devices that are allocated to it."""

    API_VERSION = "resource.k8s.io/v1"
    KIND = "ResourceClaim"

    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()


class ResourceClaimTemplateSpec(Value, frozen=True):
    """What a claim is made from; of the metadata, labels and annotations."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceClaimSpec = ResourceClaimSpec()


class ResourceClaimTemplate(Object, frozen=True):
    """The template of a claim that is created for each pod that names it."""

    API_VERSION = "resource.k8s.io/v1"
    KIND = "ResourceClaimTemplate"

    spec: ResourceClaimTemplateSpec = ResourceClaimTemplateSpec()


class DeviceClassConfiguration(Value, frozen=True):
    """Parameters for every device of the class."""

    opaque: OpaqueDeviceConfiguration | None = None


class DeviceClassSpec(Value, frozen=True):
    """Which devices are of the class."""

    selectors: tuple[DeviceSelector, ...] = ()
    config: tuple[DeviceClassConfiguration, ...] = ()
    extended_resource_name: str | None = None


class DeviceClass(Object, frozen=True):
    """A class of devices."""

    API_VERSION = "resource.k8s.io/v1"
    KIND = "DeviceClass"

    spec: DeviceClassSpec = DeviceClassSpec()


def _defaulted(spec: ResourceClaimSpec) -> ResourceClaimSpec:
    return replace(spec, devices=defaulted_claim(spec.devices))


def _check_template(item: ResourceClaimTemplate) -> Iterator[FieldError]:
    meta = item.spec.metadata
    if meta != ObjectMeta(labels=meta.labels, annotations=meta.annotations):
        yield FieldError("spec.metadata", "given", "labels and annotations are accepted", FORBIDDEN)
    yield from check_claim("spec.spec.devices", item.spec.spec.devices)


def _check_class(item: DeviceClass) -> Iterator[FieldError]:
    spec = item.spec
    yield from check_selectors("spec.selectors", spec.selectors)
    yield from max_items("spec.config", spec.config, MAX_CONFIGURATIONS)
    for number, row in enumerate(spec.config):
        yield from check_configuration(f"spec.config[{number}]", row.opaque)
    if spec.extended_resource_name is not None:
        yield from required("spec.extendedResourceName", spec.extended_resource_name, _domain_and_name)


def _domain_and_name(text: str) -> str:
    return names.label_key_error(text) if "/" in text else "a name of the form DOMAIN/NAME is accepted"


def _state(item: ResourceClaim) -> str:
    found = [
        *(["deleted"] if item.metadata.deletion_timestamp else []),
        *(["pending"] if item.status.allocation is None else ["allocated"]),
        *(["reserved"] if item.status.reserved_for else []),
    ]
    return ",".join(found)


RESOURCE_CLAIMS = Resource(
    type=ResourceClaim,
    plural="resourceclaims",
    namespaced=True,
    columns=(
        NAME,
        Column("State", "pending, allocated, reserved.", lambda claim, _: _state(claim)),
        AGE,
    ),
    rules=KindRules(
        default=lambda item: replace(item, spec=_defaulted(item.spec)),
        validate=lambda item: check_claim("spec.devices", item.spec.devices),
        validate_update=lambda old, new: immutable(("spec", old.spec, new.spec)),
        warnings=lambda item: iter((UNHEEDED,)),
    ),
)
RESOURCE_CLAIM_TEMPLATES = Resource(
    type=ResourceClaimTemplate,
    plural="resourceclaimtemplates",
    namespaced=True,
    columns=(NAME, AGE),
    rules=KindRules(
        default=lambda item: replace(item, spec=replace(item.spec, spec=_defaulted(item.spec.spec))),
        validate=_check_template,
        validate_update=lambda old, new: immutable(("spec", old.spec, new.spec)),
        warnings=lambda item: iter((UNHEEDED,)),
    ),
)
DEVICE_CLASSES = Resource(
    type=DeviceClass,
    plural="deviceclasses",
    namespaced=False,
    columns=(NAME, AGE),
    spec=lambda item: item.spec,
    rules=KindRules(validate=_check_class),
)
