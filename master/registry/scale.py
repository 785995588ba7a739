"""The subresource scale: the number of pods of a workload, as autoscaling/v1 Scale. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from api.meta.schema import FieldError, quoted, without_nulls
from api.meta.types import Object, ObjectMeta, Value
from api.meta.values import Int32
from master import errors
from master.resources.resource import AnyResource
from master.resources.resource import Scale as Scaling


class ScaleSpec(Value, frozen=True):
    """The desired number of pods."""

    replicas: Int32 = 0


class ScaleStatus(Value, frozen=True, omit_defaults=False):
    """The actual number of pods, and their label selector as text."""

    replicas: Int32 = 0
    selector: str = ""


class Scale(Object, frozen=True):
    """The desired and the actual number of pods of a workload."""

    API_VERSION = "autoscaling/v1"
    KIND = "Scale"

    spec: ScaleSpec = ScaleSpec()
    status: ScaleStatus = ScaleStatus()


def scale_of(scaling: Scaling[Any], obj: Any) -> Scale:
    """Return the Scale of an object."""
    meta = obj.metadata
    return Scale(
        api_version=Scale.API_VERSION,
        kind=Scale.KIND,
        metadata=ObjectMeta(
            name=meta.name,
            namespace=meta.namespace,
            uid=meta.uid,
            resource_version=meta.resource_version,
            creation_timestamp=meta.creation_timestamp,
        ),
        spec=ScaleSpec(replicas=scaling.replicas(obj)),
        status=ScaleStatus(replicas=scaling.status_replicas(obj), selector=scaling.selector(obj)),
    )


def decode_scale(resource: AnyResource, name: str, document: Any) -> Scale:
    """Return the Scale in a body. Raise `errors.StatusError`."""
    try:
        scale = msgspec.convert(without_nulls(document), Scale)
    except msgspec.ValidationError as error:
        raise errors.bad_request(f"the body is not a Scale: {error}") from error
    if scale.kind not in ("", Scale.KIND) or scale.api_version not in ("", Scale.API_VERSION):
        raise errors.bad_request(
            f"the body is a {scale.kind} of {scale.api_version}; Scale of autoscaling/v1 is accepted"
        )
    if scale.metadata.name not in ("", name):
        raise errors.bad_request(
            f"the name of the object ({scale.metadata.name}) does not match the name on the URL ({name})"
        )
    if scale.spec.replicas >= 1 << 31:
        raise errors.bad_request(f"spec.replicas is {scale.spec.replicas}; up to {(1 << 31) - 1} are accepted")
    if scale.spec.replicas < 0:
        problem = FieldError("spec.replicas", quoted(scale.spec.replicas), "must be greater than or equal to 0")
        raise errors.invalid(resource, name, [problem])
    return scale


def with_scale(scaling: Scaling[Any], obj: Any, scale: Scale) -> Any:
    """Return the object with the replicas, UID and resourceVersion of the Scale."""
    scaled = scaling.with_replicas(obj, scale.spec.replicas)
    metadata = msgspec.structs.replace(
        obj.metadata, uid=scale.metadata.uid, resource_version=scale.metadata.resource_version
    )
    return msgspec.structs.replace(scaled, metadata=metadata)
