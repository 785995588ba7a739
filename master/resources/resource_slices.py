"""ResourceSlice: the devices that a driver has on a node, or for several. Kept and served. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

from api.core.placement import NodeSelector
from api.meta import names
from api.meta.schema import MISSING, NOT_SUPPORTED, FieldError, duplicate_values, quoted
from api.meta.types import Object, Value
from api.validation.registry import KindRules
from master.resources.printing import AGE, NAME
from master.resources.resource import Column, Resource
from master.resources.validation import exactly_one, immutable, max_items, minimum, quantity_at_least, required
from master.resources.volumes import driver_name_problem

MAX_DEVICES, MAX_WITH_TAINTS, MAX_ATTRIBUTES, MAX_SETS, MAX_COUNTERS = 128, 64, 32, 8, 32
MAX_TAINTS, MAX_CONDITIONS, MAX_TEXT_LENGTH = 16, 4, 64
TAINT_EFFECTS = ("None", "NoSchedule", "NoExecute")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")

Amount = str | int | float | None


class Counter(Value, frozen=True):
    """How much there is of something that devices share."""

    value: Amount = None


class CounterSet(Value, frozen=True):
    """What some devices share."""

    name: str = ""
    counters: dict[str, Counter] = {}


class DeviceCounterConsumption(Value, frozen=True):
    """What a device takes of what it shares."""

    counter_set: str = ""
    counters: dict[str, Counter] = {}


class DeviceAttribute(Value, frozen=True):
    """Exactly one of the four."""

    int_: int | None = msgspec.field(default=None, name="int")
    bool_: bool | None = msgspec.field(default=None, name="bool")
    string: str | None = None
    version: str | None = None


class CapacityRequestPolicyRange(Value, frozen=True):
    """From where to where, in which steps."""

    min: Amount = None
    max: Amount = None
    step: Amount = None


class CapacityRequestPolicy(Value, frozen=True):
    """How much of a capacity can be asked for."""

    default: Amount = None
    valid_values: tuple[str | float, ...] = ()
    valid_range: CapacityRequestPolicyRange | None = None


class DeviceCapacity(Value, frozen=True):
    """How much the device has of something."""

    value: Amount = None
    request_policy: CapacityRequestPolicy | None = None


class DeviceTaint(Value, frozen=True):
    """`effect` is None, NoSchedule or NoExecute."""

    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: str | None = None


class Device(Value, frozen=True):
    """One device, and what it has."""

    name: str = ""
    attributes: dict[str, DeviceAttribute] = {}
    capacity: dict[str, DeviceCapacity] = {}
    consumes_counters: tuple[DeviceCounterConsumption, ...] = ()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    taints: tuple[DeviceTaint, ...] = ()
    binds_to_node: bool | None = None
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    allow_multiple_allocations: bool | None = None


class ResourcePool(Value, frozen=True, omit_defaults=False):
    """Slices of one generation, `resourceSliceCount` of them, make a pool."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class ResourceSliceSpec(Value, frozen=True):
    """Where the devices are is said for all of them, or with `perDeviceNodeSelection` by each."""

    driver: str = ""
    pool: ResourcePool = ResourcePool()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    devices: tuple[Device, ...] = ()
    per_device_node_selection: bool | None = None
    shared_counters: tuple[CounterSet, ...] = ()


class ResourceSlice(Object, frozen=True):
    """The devices that a driver has on a node, or for several."""

    API_VERSION = "resource.k8s.io/v1"
    KIND = "ResourceSlice"

    spec: ResourceSliceSpec = ResourceSliceSpec()


def _pool(text: str) -> str:
    parts = text.split("/")
    return (
        next(filter(None, map(names.dns_subdomain_error, parts)), "") if len(text) <= 253 else "up to 253 are accepted"
    )


def _attribute(text: str) -> str:
    domain, slash, name = text.rpartition("/")
    good = _IDENTIFIER.fullmatch(name) and (not slash or not driver_name_problem(domain))
    return "" if good else "NAME or DOMAIN/NAME is accepted, the name an identifier of C of up to 32 characters"


def _validate_resource_slice(item: ResourceSlice) -> Iterator[FieldError]:
    spec = item.spec
    yield from required("spec.driver", spec.driver, driver_name_problem)
    yield from required("spec.pool.name", spec.pool.name, _pool)
    yield from minimum(
        ("spec.pool.generation", spec.pool.generation, 0),
        ("spec.pool.resourceSliceCount", spec.pool.resource_slice_count, 1),
    )
    places = {
        "nodeName": spec.node_name,
        "nodeSelector": spec.node_selector,
        "allNodes": spec.all_nodes,
        "perDeviceNodeSelection": spec.per_device_node_selection,
    }
    yield from exactly_one("spec", {name: value or None for name, value in places.items()})
    if spec.node_name and names.dns_subdomain_error(spec.node_name):
        yield FieldError("spec.nodeName", quoted(spec.node_name), names.dns_subdomain_error(spec.node_name))
    special = any(device.taints or device.consumes_counters for device in spec.devices)
    yield from max_items("spec.devices", spec.devices, MAX_WITH_TAINTS if special else MAX_DEVICES)
    yield from max_items("spec.sharedCounters", spec.shared_counters, MAX_SETS)
    for number, row in enumerate(spec.shared_counters):
        yield from required(f"spec.sharedCounters[{number}].name", row.name, names.dns_label_error)
        yield from _check_counters(f"spec.sharedCounters[{number}].counters", row.counters)
    yield from duplicate_values(
        "spec.sharedCounters[{}].name", [counter_set.name for counter_set in spec.shared_counters]
    )
    each = bool(spec.per_device_node_selection)
    for number, device in enumerate(spec.devices):
        yield from _check_device(f"spec.devices[{number}]", device, each_says_where=each)
    yield from duplicate_values("spec.devices[{}].name", [device.name for device in spec.devices])


def _check_counters(path: str, counters: Mapping[str, Counter]) -> Iterator[FieldError]:
    yield from max_items(path, counters, MAX_COUNTERS)
    if not counters:
        yield FieldError(path, "{}", "at least one counter is required", MISSING)
    for name, counter in counters.items():
        yield from required(f"{path}[{name}]", name, names.dns_label_error)
        yield from _required(f"{path}[{name}].value", counter.value)


def _required(path: str, value: Amount) -> Iterator[FieldError]:
    if value is None:
        yield FieldError(path, "null", "a quantity is required", MISSING)
    yield from quantity_at_least(path, value)


def _check_device(path: str, device: Device, *, each_says_where: bool) -> Iterator[FieldError]:
    yield from required(f"{path}.name", device.name, names.dns_label_error)
    yield from max_items(f"{path}.attributes", [*device.attributes, *device.capacity], MAX_ATTRIBUTES)
    for name, attribute in device.attributes.items():
        yield from required(f"{path}.attributes", name, _attribute)
        held = {"int": attribute.int_, "bool": attribute.bool_, "string": attribute.string}
        yield from exactly_one(f"{path}.attributes[{name}]", held | {"version": attribute.version})
        for field, text in (("string", attribute.string), ("version", attribute.version)):
            if text is not None and len(text) > MAX_TEXT_LENGTH:
                reason = f"must have at most {MAX_TEXT_LENGTH} characters"
                yield FieldError(f"{path}.attributes[{name}].{field}", quoted(text), reason)
    for name, capacity in device.capacity.items():
        yield from required(f"{path}.capacity", name, _attribute)
        yield from _required(f"{path}.capacity[{name}].value", capacity.value)
    for number, row in enumerate(device.consumes_counters):
        yield from required(f"{path}.consumesCounters[{number}].counterSet", row.counter_set, names.dns_label_error)
        yield from _check_counters(f"{path}.consumesCounters[{number}].counters", row.counters)
    places = {"nodeName": device.node_name, "nodeSelector": device.node_selector, "allNodes": device.all_nodes}
    named = {name: value or None for name, value in places.items()}
    if each_says_where:
        yield from exactly_one(path, named)
    elif any(value is not None for value in named.values()):
        yield FieldError(path, "given", "where it is may be said only with perDeviceNodeSelection")
    yield from max_items(f"{path}.taints", device.taints, MAX_TAINTS)
    for number, taint in enumerate(device.taints):
        yield from _check_taint(f"{path}.taints[{number}]", taint)
    conditions = (("bindingConditions", device.binding_conditions),)
    for field, rows in (*conditions, ("bindingFailureConditions", device.binding_failure_conditions)):
        yield from max_items(f"{path}.{field}", rows, MAX_CONDITIONS)


def _check_taint(path: str, taint: DeviceTaint) -> Iterator[FieldError]:
    yield from required(f"{path}.key", taint.key, names.label_key_error)
    if names.label_value_error(taint.value):
        yield FieldError(f"{path}.value", quoted(taint.value), names.label_value_error(taint.value))
    if taint.effect not in TAINT_EFFECTS:
        accepted = f"{', '.join(TAINT_EFFECTS)} are accepted"
        yield FieldError(f"{path}.effect", quoted(taint.effect), accepted, NOT_SUPPORTED)


def _validate_resource_slice_update(old: ResourceSlice, new: ResourceSlice) -> Iterator[FieldError]:
    yield from immutable(
        ("spec.driver", old.spec.driver, new.spec.driver),
        ("spec.pool.name", old.spec.pool.name, new.spec.pool.name),
        ("spec.nodeName", old.spec.node_name, new.spec.node_name),
    )


RESOURCE_SLICES = Resource(
    type=ResourceSlice,
    plural="resourceslices",
    namespaced=False,
    columns=(
        NAME,
        Column(
            "Node",
            "The node where the devices are.",
            lambda resource_slice, _: resource_slice.spec.node_name or "<unset>",
        ),
        Column("Driver", "Whose devices they are.", lambda resource_slice, _: resource_slice.spec.driver),
        Column("Pool", "The pool that it is a part of.", lambda resource_slice, _: resource_slice.spec.pool.name),
        AGE,
    ),
    selectable_fields=lambda item: {"spec.nodeName": item.spec.node_name or "", "spec.driver": item.spec.driver},
    spec=lambda item: item.spec,
    rules=KindRules(validate=_validate_resource_slice, validate_update=_validate_resource_slice_update),
)
