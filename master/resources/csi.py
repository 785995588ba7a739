"""CSIDriver and CSINode: storage drivers, and those of each node. Stored for kubelets. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec.structs import replace

from api.meta import names
from api.meta.schema import DUPLICATE, FORBIDDEN, FieldError, duplicate_values, quoted, unsupported_values
from api.meta.types import MERGED_SET, Object, Value, merge_keys
from api.meta.values import Int32
from api.validation.registry import KindRules
from master.resources.printing import AGE, NAME
from master.resources.resource import Column, Resource
from master.resources.validation import immutable, minimum, required

MODES = ("Persistent", "Ephemeral")
GROUP_POLICIES = ("ReadWriteOnceWithFSType", "File", "None")
MAX_NODE_ID_LENGTH = 256
MIN_TOKEN_SECONDS, MIN_PERIOD_SECONDS = 600, 10


class CSITokenRequest(Value, frozen=True):
    """A token of the pod's service account, for the driver."""

    audience: str = ""
    expiration_seconds: int | None = None


class CSIDriverSpec(Value, frozen=True):
    """The abilities and requirements of a driver."""

    attach_required: bool | None = None
    pod_info_on_mount: bool | None = None
    volume_lifecycle_modes: Annotated[tuple[str, ...], MERGED_SET] = ()
    storage_capacity: bool | None = None
    fs_group_policy: str | None = None
    token_requests: tuple[CSITokenRequest, ...] = ()
    requires_republish: bool | None = None
    se_linux_mount: bool | None = None
    node_allocatable_update_period_seconds: int | None = None
    service_account_token_in_secrets: bool | None = None


class CSIDriver(Object, frozen=True):
    """A driver for storage, by its name."""

    API_VERSION = "storage.k8s.io/v1"
    KIND = "CSIDriver"
    PLURAL = "csidrivers"
    NAMESPACED = False

    spec: CSIDriverSpec = CSIDriverSpec()


class VolumeNodeResources(Value, frozen=True):
    """The number of volumes of a driver that a node can have."""

    count: Int32 | None = None


class CSINodeDriver(Value, frozen=True):
    """A driver on a node. `nodeID` is the name by which the driver knows the node."""

    name: str = ""
    node_id: str = msgspec.field(default="", name="nodeID")
    topology_keys: tuple[str, ...] = ()
    allocatable: VolumeNodeResources | None = None


class CSINodeSpec(Value, frozen=True, omit_defaults=False):
    """All drivers on a node."""

    drivers: Annotated[tuple[CSINodeDriver, ...], merge_keys("name")] = ()


class CSINode(Object, frozen=True):
    """The storage drivers on the node of this name. Its kubelet writes the object."""

    API_VERSION = "storage.k8s.io/v1"
    KIND = "CSINode"
    PLURAL = "csinodes"
    NAMESPACED = False

    spec: CSINodeSpec = CSINodeSpec()


def _driver_name_error(text: str) -> str:
    """Return why a driver's name is not valid: it must be a domain of up to 63 characters. Empty if it is."""
    return names.dns_subdomain_error(text.lower()) if len(text) <= 63 else "up to 63 characters are accepted"


def _default_driver(csi_driver: CSIDriver) -> CSIDriver:
    spec = csi_driver.spec
    return replace(
        csi_driver,
        spec=replace(
            spec,
            attach_required=True if spec.attach_required is None else spec.attach_required,
            pod_info_on_mount=bool(spec.pod_info_on_mount),
            volume_lifecycle_modes=spec.volume_lifecycle_modes or ("Persistent",),
            storage_capacity=bool(spec.storage_capacity),
            fs_group_policy=spec.fs_group_policy or GROUP_POLICIES[0],
            requires_republish=bool(spec.requires_republish),
            se_linux_mount=bool(spec.se_linux_mount),
        ),
    )


def _check_driver(csi_driver: CSIDriver) -> Iterator[FieldError]:
    spec = csi_driver.spec
    if _driver_name_error(csi_driver.metadata.name):
        yield FieldError(
            "metadata.name", quoted(csi_driver.metadata.name), _driver_name_error(csi_driver.metadata.name)
        )
    modes = enumerate(spec.volume_lifecycle_modes)
    yield from unsupported_values(
        ("spec.fsGroupPolicy", spec.fs_group_policy or "", GROUP_POLICIES),
        *((f"spec.volumeLifecycleModes[{number}]", mode, MODES) for number, mode in modes),
    )
    seen = set()
    for number, request in enumerate(spec.token_requests):
        path = f"spec.tokenRequests[{number}]"
        if request.audience in seen:
            yield FieldError(f"{path}.audience", quoted(request.audience), "must be unique", DUPLICATE)
        seen.add(request.audience)
        yield from minimum((f"{path}.expirationSeconds", request.expiration_seconds, MIN_TOKEN_SECONDS))
    period = spec.node_allocatable_update_period_seconds
    yield from minimum(("spec.nodeAllocatableUpdatePeriodSeconds", period, MIN_PERIOD_SECONDS))


def _immutable_driver(old: CSIDriver, new: CSIDriver) -> Iterator[FieldError]:
    yield from immutable(
        ("spec.attachRequired", old.spec.attach_required, new.spec.attach_required),
        ("spec.volumeLifecycleModes", old.spec.volume_lifecycle_modes, new.spec.volume_lifecycle_modes),
    )


def _check_node(csi_node: CSINode) -> Iterator[FieldError]:
    drivers = csi_node.spec.drivers
    for number, driver in enumerate(drivers):
        path = f"spec.drivers[{number}]"
        yield from required(f"{path}.name", driver.name, _driver_name_error)
        yield from required(f"{path}.nodeID", driver.node_id, _node_id)
        for index, key in enumerate(driver.topology_keys):
            yield from required(f"{path}.topologyKeys[{index}]", key, names.label_key_error)
        yield from duplicate_values(f"{path}.topologyKeys[{{}}]", list(driver.topology_keys))
        yield from minimum((f"{path}.allocatable.count", (driver.allocatable or VolumeNodeResources()).count, 0))
    yield from duplicate_values("spec.drivers[{}].name", [driver.name for driver in drivers])


def _node_id(text: str) -> str:
    return "" if len(text) <= MAX_NODE_ID_LENGTH else f"up to {MAX_NODE_ID_LENGTH} characters are accepted"


def _immutable_node(old: CSINode, new: CSINode) -> Iterator[FieldError]:
    """Yield an error for each changed driver: only the number of its volumes may change."""
    before = {driver.name: (driver.node_id, driver.topology_keys) for driver in old.spec.drivers}
    for number, driver in enumerate(new.spec.drivers):
        if before.get(driver.name, (driver.node_id, driver.topology_keys)) != (driver.node_id, driver.topology_keys):
            yield FieldError(f"spec.drivers[{number}]", quoted(driver.name), "field is immutable", FORBIDDEN)


CSI_DRIVERS = Resource(
    type=CSIDriver,
    columns=(
        NAME,
        Column(
            "AttachRequired",
            "True if a volume is attached before it is mounted.",
            lambda driver, _: bool(driver.spec.attach_required),
            type="boolean",
        ),
        Column(
            "PodInfoOnMount",
            "True if the driver receives information about the pod.",
            lambda driver, _: bool(driver.spec.pod_info_on_mount),
            type="boolean",
        ),
        Column(
            "StorageCapacity",
            "True if the driver reports free storage.",
            lambda driver, _: bool(driver.spec.storage_capacity),
            type="boolean",
        ),
        Column(
            "TokenRequests",
            "Audiences of the tokens that the driver receives.",
            lambda driver, _: (
                ",".join(request.audience for request in driver.spec.token_requests)
                if driver.spec.token_requests
                else "<unset>"
            ),
        ),
        Column(
            "RequiresRepublish",
            "True if volumes are published again periodically.",
            lambda driver, _: bool(driver.spec.requires_republish),
            type="boolean",
        ),
        Column(
            "Modes",
            "Persistent, Ephemeral or both.",
            lambda driver, _: ",".join(driver.spec.volume_lifecycle_modes) or "<none>",
        ),
        AGE,
    ),
    rules=KindRules(_default_driver, _check_driver, _immutable_driver),
    acted_on_by="stored only, for kubelets",
)
CSI_NODES = Resource(
    type=CSINode,
    columns=(
        NAME,
        Column("Drivers", "Number of drivers.", lambda node, _: len(node.spec.drivers), type="integer"),
        AGE,
    ),
    rules=KindRules(validate=_check_node, validate_update=_immutable_node),
    acted_on_by="stored only, for kubelets",
)
