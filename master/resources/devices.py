"""Requests for devices, and the parts of the kinds of resource.k8s.io that describe devices. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from api.meta import names
from api.meta.schema import MISSING, NOT_SUPPORTED, FieldError, duplicate_values, quoted, unsupported_values
from api.meta.types import Json, Value
from master.resources.validation import exactly_one, max_items, minimum, quantities_at_least_zero, required
from master.resources.volumes import driver_name_problem

COUNTED, ALL_OF_THEM = MODES = ("ExactCount", "All")
EFFECTS = ("NoSchedule", "NoExecute")
MAX_REQUESTS = MAX_SELECTORS = MAX_CONFIGURATIONS = 32
MAX_CHOICES, MAX_TOLERATIONS, MAX_EXPRESSION_LENGTH = 8, 16, 10 << 10

Quantities = dict[str, str | int | float]


class CELDeviceSelector(Value, frozen=True):
    """An expression that is true of the devices that are meant."""

    expression: str = ""


class DeviceSelector(Value, frozen=True):
    """Which devices are meant."""

    cel: CELDeviceSelector | None = None


class OpaqueDeviceConfiguration(Value, frozen=True):
    """Parameters that only the driver understands."""

    driver: str = ""
    parameters: Json = None


class DeviceToleration(Value, frozen=True):
    """A taint of a device that is borne; `operator` is Exists or Equal."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class CapacityRequirements(Value, frozen=True):
    """How much of each capacity."""

    requests: Quantities = {}


class ExactDeviceRequest(Value, frozen=True):
    """Some devices of a class, or all of them."""

    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = ""
    count: int = 0
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: CapacityRequirements | None = None


class DeviceSubRequest(Value, frozen=True):
    """One of several ways to satisfy a request."""

    name: str = ""
    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = ""
    count: int = 0
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: CapacityRequirements | None = None


class DeviceRequest(Value, frozen=True):
    """Either `exactly` or the first of `firstAvailable` that can be had."""

    name: str = ""
    exactly: ExactDeviceRequest | None = None
    first_available: tuple[DeviceSubRequest, ...] = ()


class DeviceConstraint(Value, frozen=True):
    """The devices of these requests have the same value of an attribute, or all another."""

    requests: tuple[str, ...] = ()
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class DeviceClaimConfiguration(Value, frozen=True):
    """For the devices of these requests."""

    requests: tuple[str, ...] = ()
    opaque: OpaqueDeviceConfiguration | None = None


class DeviceClaim(Value, frozen=True):
    """All requests must be satisfied at once."""

    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[DeviceConstraint, ...] = ()
    config: tuple[DeviceClaimConfiguration, ...] = ()


# --- defaults ---------------------------------------------------------------------------------------------------------


def defaulted_claim(claim: DeviceClaim) -> DeviceClaim:
    """Return the claim with every default set."""
    return msgspec.structs.replace(claim, requests=tuple(_defaulted(request) for request in claim.requests))


def _defaulted(row: DeviceRequest) -> DeviceRequest:
    exactly = row.exactly
    if exactly is not None:
        mode, count, borne = _counted(exactly)
        exactly = msgspec.structs.replace(exactly, allocation_mode=mode, count=count, tolerations=borne)
    found = []
    for choice in row.first_available:
        mode, count, borne = _counted(choice)
        found.append(msgspec.structs.replace(choice, allocation_mode=mode, count=count, tolerations=borne))
    return msgspec.structs.replace(row, exactly=exactly, first_available=tuple(found))


def _counted(row: ExactDeviceRequest | DeviceSubRequest) -> tuple[str, int, tuple[DeviceToleration, ...]]:
    mode = row.allocation_mode or COUNTED
    borne = tuple(
        msgspec.structs.replace(toleration, operator=toleration.operator or "Equal") for toleration in row.tolerations
    )
    return mode, (row.count or 1) if mode == COUNTED else row.count, borne


# --- what is wrong ----------------------------------------------------------------------------------------------------


def check_claim(path: str, claim: DeviceClaim) -> Iterator[FieldError]:
    """Yield every error, with its path."""
    requests = claim.requests
    for field, rows in (("requests", requests), ("constraints", claim.constraints), ("config", claim.config)):
        yield from max_items(f"{path}.{field}", rows, MAX_REQUESTS)
    known = {request.name for request in requests}
    known |= {f"{request.name}/{choice.name}" for request in requests for choice in request.first_available}
    for number, row in enumerate(requests):
        yield from _check_request(f"{path}.requests[{number}]", row)
    yield from duplicate_values(f"{path}.requests[{{}}].name", [request.name for request in requests])
    for number, constraint in enumerate(claim.constraints):
        place = f"{path}.constraints[{number}]"
        fields = {"matchAttribute": constraint.match_attribute, "distinctAttribute": constraint.distinct_attribute}
        yield from exactly_one(place, fields)
        for field, text in fields.items():
            if text is not None and ("/" not in text or names.label_key_error(text)):
                yield FieldError(f"{place}.{field}", quoted(text), "must include domain: DOMAIN/NAME is accepted")
        yield from _known(place, constraint.requests, known)
    for number, config in enumerate(claim.config):
        place = f"{path}.config[{number}]"
        yield from check_configuration(place, config.opaque)
        yield from _known(place, config.requests, known)


def _known(path: str, requests: tuple[str, ...], known: set[str]) -> Iterator[FieldError]:
    for number, name in enumerate(requests):
        if name not in known:
            yield FieldError(f"{path}.requests[{number}]", quoted(name), "must be the name of a request in the claim")
    yield from duplicate_values(f"{path}.requests[{{}}]", list(requests))


def check_configuration(path: str, opaque: OpaqueDeviceConfiguration | None) -> Iterator[FieldError]:
    """Yield the errors of a driver's parameters: they are required, with the name of the driver."""
    if opaque is None:
        yield FieldError(f"{path}.opaque", "null", "parameters for a driver are required", MISSING)
        return
    yield from required(f"{path}.opaque.driver", opaque.driver, driver_name_problem)
    if opaque.parameters is None:
        yield FieldError(f"{path}.opaque.parameters", "null", "parameters are required", MISSING)
    elif not isinstance(opaque.parameters, dict):
        yield FieldError(f"{path}.opaque.parameters", quoted(opaque.parameters), "an object is accepted")


def _check_request(path: str, row: DeviceRequest) -> Iterator[FieldError]:
    yield from required(f"{path}.name", row.name, names.dns_label_error)
    yield from exactly_one(path, {"exactly": row.exactly, "firstAvailable": row.first_available or None})
    if row.exactly is not None:
        yield from _check_wish(f"{path}.exactly", row.exactly)
    yield from max_items(f"{path}.firstAvailable", row.first_available, MAX_CHOICES)
    for number, choice in enumerate(row.first_available):
        yield from required(f"{path}.firstAvailable[{number}].name", choice.name, names.dns_label_error)
        yield from _check_wish(f"{path}.firstAvailable[{number}]", choice)
    yield from duplicate_values(f"{path}.firstAvailable[{{}}].name", [choice.name for choice in row.first_available])


def _check_wish(path: str, row: ExactDeviceRequest | DeviceSubRequest) -> Iterator[FieldError]:
    yield from required(f"{path}.deviceClassName", row.device_class_name, names.dns_subdomain_error)
    yield from check_selectors(f"{path}.selectors", row.selectors)
    yield from unsupported_values((f"{path}.allocationMode", row.allocation_mode, MODES))
    if row.allocation_mode == ALL_OF_THEM and row.count:
        reason = f"must not be specified when allocationMode is {ALL_OF_THEM!r}"
        yield FieldError(f"{path}.count", quoted(row.count), reason)
    yield from minimum((f"{path}.count", row.count, 0))
    if row.capacity is not None:
        yield from quantities_at_least_zero(f"{path}.capacity.requests", row.capacity.requests)
    yield from max_items(f"{path}.tolerations", row.tolerations, MAX_TOLERATIONS)
    for number, toleration in enumerate(row.tolerations):
        yield from _check_toleration(f"{path}.tolerations[{number}]", toleration)


def check_selectors(path: str, rows: tuple[DeviceSelector, ...]) -> Iterator[FieldError]:
    """Yield an error for each selector without an expression. Expressions are not parsed."""
    yield from max_items(path, rows, MAX_SELECTORS)
    for number, row in enumerate(rows):
        if row.cel is None or not row.cel.expression:
            yield FieldError(f"{path}[{number}].cel.expression", '""', "an expression is required", MISSING)
        elif len(row.cel.expression) > MAX_EXPRESSION_LENGTH:
            reason = f"must have at most {MAX_EXPRESSION_LENGTH} bytes"
            yield FieldError(f"{path}[{number}].cel.expression", quoted(row.cel.expression), reason)


def _check_toleration(path: str, row: DeviceToleration) -> Iterator[FieldError]:
    if row.key and names.label_key_error(row.key):
        yield FieldError(f"{path}.key", quoted(row.key), names.label_key_error(row.key))
    if row.operator not in ("", "Equal", "Exists"):
        yield FieldError(f"{path}.operator", quoted(row.operator), "Equal, Exists are accepted", NOT_SUPPORTED)
    if not row.key and row.operator != "Exists":
        yield FieldError(f"{path}.operator", quoted(row.operator), "operator must be Exists when `key` is empty")
    if row.operator == "Exists" and row.value:
        yield FieldError(f"{path}.value", quoted(row.value), "must be empty when `operator` is 'Exists'")
    elif names.label_value_error(row.value):
        yield FieldError(f"{path}.value", quoted(row.value), names.label_value_error(row.value))
    yield from unsupported_values((f"{path}.effect", row.effect, EFFECTS))
