"""APIService: who serves a version of an API group, this server or another one behind a service. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from api.meta import names
from api.meta.schema import FORBIDDEN, MISSING, TOO_LONG, FieldError, quoted, unsupported_values
from api.meta.types import Condition, Object, Value, merge_keys
from api.meta.values import Int32
from api.validation.registry import KindRules
from master.resources.client_config import HTTPS_PORT
from master.resources.metrics import METRICS_GROUP
from master.resources.printing import AGE, NAME
from master.resources.resource import Column, Resource
from master.resources.virtual import VIRTUAL_RESOURCES

AVAILABLE = "Available"
MAX_GROUP_PRIORITY, MAX_VERSION_PRIORITY = 20000, 1000
MAX_CA_BUNDLE_BYTES = 1 << 20

TAKEN_OVER_GROUPS = frozenset((METRICS_GROUP,))
"""Groups of this server that another one may serve. The others are never served elsewhere: requests for them, with the
identity of whoever sends them, would leave the master.
"""


class APIServiceReference(Value, frozen=True):
    """A service of the cluster. `port` is one of its ports, 443 if none is given."""

    namespace: str = ""
    name: str = ""
    port: Int32 | None = None


class APIServiceSpec(Value, frozen=True):
    """A version of a group and its server.

    `group` and `version` name what is served. `service` is the server; without it, this server is meant. `ca_bundle`
    holds the certificates in PEM with which that of the server is verified, the certificates of the host are used if
    there are none; `insecure_skip_tls_verify` accepts any certificate. `group_priority_minimum` and `version_priority`
    order groups and the versions of a group; the highest comes first.
    """

    service: APIServiceReference | None = None
    group: str = ""
    version: str = ""
    insecure_skip_tls_verify: bool = msgspec.field(default=False, name="insecureSkipTLSVerify")
    ca_bundle: bytes = b""
    group_priority_minimum: Int32 = 0
    version_priority: Int32 = 0


class APIServiceStatus(Value, frozen=True):
    """The condition Available says whether requests are sent to the server."""

    conditions: Annotated[tuple[Condition, ...], merge_keys("type")] = ()


class APIService(Object, frozen=True):
    """A version of an API group and the server for it. The name is VERSION.GROUP."""

    API_VERSION = "apiregistration.k8s.io/v1"
    KIND = "APIService"
    PLURAL = "apiservices"
    NAMESPACED = False

    spec: APIServiceSpec = APIServiceSpec()
    status: APIServiceStatus = APIServiceStatus()

    @property
    def available(self) -> Condition | None:
        """Return the condition Available; None if there is none yet."""
        return next((condition for condition in self.status.conditions if condition.type == AVAILABLE), None)


@cache
def local_group_versions() -> frozenset[tuple[str, str]]:
    """Return group and version of everything that this server has, without custom resources."""
    # The scheme imports this module.
    from master.resources.scheme import SERVED  # noqa: PLC0415

    virtual = ((group, "v1") for group in VIRTUAL_RESOURCES)
    return frozenset((*((resource.group, resource.version) for resource in SERVED), *virtual))


def is_kept(group: str) -> bool:
    """Return whether no other server may serve a version of a group."""
    return group not in TAKEN_OVER_GROUPS and any(group == local for local, _ in local_group_versions())


def _default(api: APIService) -> APIService:
    if api.spec.service is None or api.spec.service.port is not None:
        return api
    return replace(api, spec=replace(api.spec, service=replace(api.spec.service, port=HTTPS_PORT)))


def _validate(api: APIService) -> Iterator[FieldError]:
    spec, name = api.spec, f"{api.spec.version}.{api.spec.group}"
    if api.metadata.name != name:
        detail = f'must be `spec.version+"."+spec.group`: {quoted(name)}'
        yield FieldError("metadata.name", quoted(api.metadata.name), detail)
    if not spec.group and spec.version != "v1":
        yield FieldError("spec.group", '""', "only v1 may have an empty group and it better be legacy kube", MISSING)
    if spec.group and (error := names.dns_subdomain_error(spec.group)):
        yield FieldError("spec.group", quoted(spec.group), error)
    if error := names.dns_1035_label_error(spec.version):
        yield FieldError("spec.version", quoted(spec.version), error)
    for field, priority, greatest in (
        ("groupPriorityMinimum", spec.group_priority_minimum, MAX_GROUP_PRIORITY),
        ("versionPriority", spec.version_priority, MAX_VERSION_PRIORITY),
    ):
        if not 0 < priority <= greatest:
            yield FieldError(f"spec.{field}", quoted(priority), f"must be positive and less than {greatest}")
    yield from _validate_local(spec) if spec.service is None else _validate_remote(spec, spec.service)
    for index, condition in enumerate(api.status.conditions):
        yield from unsupported_values(
            (f"status.conditions[{index}].status", condition.status, ("True", "False", "Unknown"))
        )


def _validate_local(spec: APIServiceSpec) -> Iterator[FieldError]:
    if spec.ca_bundle:
        yield FieldError("spec.caBundle", f'"{len(spec.ca_bundle)} bytes"', "local APIServices may not have a caBundle")
    if spec.insecure_skip_tls_verify:
        detail = "local APIServices may not have insecureSkipTLSVerify"
        yield FieldError("spec.insecureSkipTLSVerify", "true", detail)


def _validate_remote(spec: APIServiceSpec, service: APIServiceReference) -> Iterator[FieldError]:
    path = "spec.service"
    if is_kept(spec.group):
        yield FieldError(path, quoted(service.name), "the group is served by this server only", FORBIDDEN)
    for field, value, syntax in (
        ("namespace", service.namespace, names.dns_label_error),
        ("name", service.name, names.dns_1035_label_error),
    ):
        if not value:
            yield FieldError(f"{path}.{field}", '""', "", MISSING)
        elif error := syntax(value):
            yield FieldError(f"{path}.{field}", quoted(value), error)
    if service.port is not None and not 0 < service.port < 65536:
        detail = "port is not valid: must be between 1 and 65535, inclusive"
        yield FieldError(f"{path}.port", quoted(service.port), detail)
    if spec.insecure_skip_tls_verify and spec.ca_bundle:
        yield FieldError("spec.insecureSkipTLSVerify", "true", "may not be true if caBundle is present")
    if len(spec.ca_bundle) > MAX_CA_BUNDLE_BYTES:
        yield FieldError("spec.caBundle", "", f"may not be more than {MAX_CA_BUNDLE_BYTES} bytes", TOO_LONG)


def _service_cell(api: Any, _: object) -> str:
    service = api.spec.service
    return "Local" if service is None else f"{service.namespace}/{service.name}"


def _available_cell(api: APIService, _: object) -> str:
    condition = api.available
    if condition is None:
        return "Unknown"
    return condition.status if condition.status == "True" else f"{condition.status} ({condition.reason})"


API_SERVICES = Resource(
    type=APIService,
    categories=("api-extensions",),
    columns=(
        NAME,
        Column("Service", "The service of the server; Local for this one.", _service_cell),
        Column("Available", "Whether requests are sent to the server.", _available_cell),
        AGE,
    ),
    rules=KindRules(_default, _validate, validate_name=names.path_segment_error),
    status_update_keeps_metadata=True,
    acted_on_by="the master, which checks the server and sends it the requests for the version",
)
