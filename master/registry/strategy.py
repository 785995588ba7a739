"""The generic strategy of create, update and delete: fields set by the server, fields that clients may not change.
Pure.

Raises `StatusError` where the write is not allowed.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from itertools import chain
from typing import Any

import msgspec

from api.core.node import Namespace, NamespaceStatus, Node
from api.core.pod import FINAL_PHASES, Pod
from api.meta.schema import FORBIDDEN, FieldError, quoted
from api.meta.types import Object
from api.validation.registry import check, check_update
from master import errors
from master.registry.request import DeleteOptions, Preconditions
from master.resources.metadata import format_time, parse_time, with_metadata
from master.resources.namespaces import SYSTEM_NAMESPACES
from master.resources.resource import AnyResource

DEFAULT_GRACE_SECONDS = 30
"""Seconds that a pod has for its end if it does not say."""

MAX_GRACE_SECONDS = (1 << 31) - 1

FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"
"""Finalizers of owners: wait until all dependents are deleted, or release them."""

BACKGROUND = "Background"
PROPAGATION_FINALIZERS = {BACKGROUND: "", "Foreground": FOREGROUND, "Orphan": ORPHAN}
"""Propagation policy → the finalizer that implements it."""
POLICY_OF_FINALIZER = {finalizer: policy for policy, finalizer in PROPAGATION_FINALIZERS.items() if finalizer}


# --- create and update ------------------------------------------------------------------------------------------------


def prepare_create(resource: AnyResource, obj: Any, uid: str, now: datetime.datetime) -> Any:
    """Return a new object with the fields that the server sets."""
    if isinstance(obj, Pod) and obj.spec.ephemeral_containers:
        reason = "they are added to an existing pod through the subresource ephemeralcontainers"
        raise errors.invalid(
            resource, obj.metadata.name, [FieldError("spec.ephemeralContainers", "given", reason, FORBIDDEN)]
        )
    new = with_metadata(
        obj,
        uid=uid,
        resource_version="",
        creation_timestamp=format_time(now),
        generation=1 if resource.spec is not None else 0,
        deletion_timestamp=None,
        deletion_grace_period_seconds=None,
    )
    return resource.prepare_for_create(new)


def validate(resource: AnyResource, obj: Any, old: Any = None, subresource: str = "") -> None:
    """Require that an object is valid: as admission has completed it, and with the fields that the server sets.

    `old` is the stored object if only a part of it changes, that of a `subresource`; its own errors remain. Raises
    Invalid with the errors of the object.
    """
    problems = errors.first_errors(chain(check(obj, resource.rules), _schema_errors(resource, obj, old, subresource)))
    if problems and old is not None:
        stored = set(check(old, resource.rules))
        problems = [problem for problem in problems if problem not in stored]
    if problems:
        raise errors.invalid(resource, obj.metadata.name, problems)


def validate_create(resource: AnyResource, obj: Any) -> None:
    """Require that a new object is valid. Raises Invalid."""
    validate(resource, obj)
    problems = errors.first_errors(resource.rules.validate_create(obj))
    if problems:
        raise errors.invalid(resource, obj.metadata.name, problems)


def _schema_errors(resource: AnyResource, new: Any, old: Any, subresource: str = "") -> Iterator[FieldError]:
    """Yield what the schema of a custom resource does not allow."""
    if resource.documents is not None:
        yield from resource.documents.validate(new, old, subresource)


def require_revision(resource: AnyResource, obj: Any) -> None:
    """Require that the update of a custom resource names the revision that it replaces. Raises Invalid."""
    if resource.documents is not None and obj.metadata.resource_version in ("", "0"):
        problem = FieldError("metadata.resourceVersion", "0", "must be specified for an update")
        raise errors.invalid(resource, obj.metadata.name, [problem])


def prepare_update(resource: AnyResource, new: Any, old: Any) -> Any:
    """Return the object after an update of everything but its status. Raises Invalid if it is not valid."""
    _check_identity(resource, new, old)
    new = resource.prepare_for_update(_with_old_metadata(new, old), old)
    problems = errors.first_errors(
        chain(check(new, resource.rules), _schema_errors(resource, new, old), check_update(old, new, resource.rules))
    )
    old_finalizers = set(old.metadata.finalizers)
    added = [name for name in new.metadata.finalizers if name not in old_finalizers]
    if old.metadata.deletion_timestamp and added:
        reason = "no new finalizers can be added if the object is being deleted"
        problems.append(FieldError("metadata.finalizers", quoted(added), reason, FORBIDDEN))
    if problems:
        raise errors.invalid(resource, old.metadata.name, problems)
    return _with_next_generation(resource, new, old)


def _with_next_generation(resource: AnyResource, new: Any, old: Any) -> Any:
    """Return the object with the next generation, if the part that counts has changed."""
    if resource.spec is None or resource.spec(new) == resource.spec(old):
        return new
    return with_metadata(new, generation=old.metadata.generation + 1)


def prepare_subresource_update(resource: AnyResource, name: str, new: Any, old: Any) -> Any:
    """Return the object after an update of the part that the named subresource covers, not validated yet."""
    subresource = resource.subresource(name)
    if subresource is None or subresource.replace is None:
        raise errors.path_not_found()
    _check_identity(resource, new, old)
    obj, problems = subresource.replace(new, old)
    if problems:
        raise errors.invalid(resource, old.metadata.name, list(problems))
    return _with_next_generation(resource, obj, old)


def _check_identity(resource: AnyResource, new: Any, old: Any) -> None:
    if new.metadata.resource_version not in ("", "0", old.metadata.resource_version):
        raise errors.conflict(resource, old.metadata.name)
    if new.metadata.uid not in ("", old.metadata.uid):
        raise errors.uid_conflict(resource, old.metadata.name, new.metadata.uid, old.metadata.uid)


def _with_old_metadata(new: Any, old: Any) -> Any:
    """Return the new object with the metadata that clients cannot change."""
    return with_metadata(
        new,
        name=old.metadata.name,
        namespace=old.metadata.namespace,
        generate_name=old.metadata.generate_name,
        uid=old.metadata.uid,
        resource_version=old.metadata.resource_version,
        generation=old.metadata.generation,
        creation_timestamp=old.metadata.creation_timestamp,
        deletion_timestamp=old.metadata.deletion_timestamp,
        deletion_grace_period_seconds=old.metadata.deletion_grace_period_seconds,
    )


def is_deletable(resource: AnyResource, obj: Any) -> bool:
    """Return whether an object that is being deleted has no finalizer and no other reason to stay."""
    return bool(obj.metadata.deletion_timestamp) and not obj.metadata.finalizers and not resource.blocks_deletion(obj)


def check_preconditions(resource: AnyResource, obj: Object, options: DeleteOptions) -> None:
    """Raise the conflict if the object does not match the preconditions of a delete."""
    preconditions, metadata = options.preconditions or Preconditions(), obj.metadata
    if preconditions.uid is not None and preconditions.uid != metadata.uid:
        reason = (
            f"the UID in the precondition ({preconditions.uid}) does not match the UID in record ({metadata.uid}). "
            "The object might have been deleted and then recreated"
        )
        raise errors.precondition_failed(resource, metadata.name, reason)
    if preconditions.resource_version is not None and preconditions.resource_version != metadata.resource_version:
        reason = (
            f"the ResourceVersion in the precondition ({preconditions.resource_version}) does not match the "
            f"ResourceVersion in record ({metadata.resource_version}). The object might have been modified"
        )
        raise errors.precondition_failed(resource, metadata.name, reason)


def prepare_delete(
    resource: AnyResource, obj: Any, options: DeleteOptions, now: datetime.datetime, node: Node | None = None
) -> Any | None:
    """Return the object marked for deletion, or None if it is deleted at once.

    `node` is the node that a pod is bound to, if that node exists.
    """
    if resource.is_stored_as(Namespace):
        return _prepare_namespace_delete(resource, obj, now)
    obj = _with_policy_finalizer(obj, _propagation_policy(resource, obj, options))
    if resource.deletion_finalizer and not obj.metadata.deletion_timestamp:
        obj = _with_finalizer(obj, resource.deletion_finalizer)
    grace = _grace_seconds(obj, options, node) if isinstance(obj, Pod) else 0
    if grace == 0 and not obj.metadata.finalizers:
        return None
    since = parse_time(obj.metadata.deletion_timestamp)
    before = obj.metadata.deletion_grace_period_seconds
    if since is None:
        if obj.metadata.generation:  # Deletion changes the desired state.
            obj = with_metadata(obj, generation=obj.metadata.generation + 1)
        return _with_deletion_timestamp(obj, now + datetime.timedelta(seconds=grace), grace)
    if before is None or grace >= before:
        return obj
    return _with_deletion_timestamp(obj, since - datetime.timedelta(seconds=before - grace), grace)


def _propagation_policy(resource: AnyResource, obj: Object, options: DeleteOptions) -> str:
    """Return what happens to the dependents: as the options say, else as the object's finalizers say, else the default
    of the resource.
    """
    if options.propagation_policy:
        return options.propagation_policy
    if options.orphan_dependents is not None:
        return "Orphan" if options.orphan_dependents else BACKGROUND
    return finalizer_policy(obj) or ("Orphan" if resource.orphans_dependents else BACKGROUND)


def finalizer_policy(obj: Object) -> str:
    """Return the propagation policy that an object's finalizers implement; empty if they implement none."""
    return next((POLICY_OF_FINALIZER[name] for name in obj.metadata.finalizers if name in POLICY_OF_FINALIZER), "")


def _with_policy_finalizer(obj: Any, policy: str) -> Any:
    """Return the object with the finalizer of a policy in place of the finalizers of other policies."""
    if policy not in PROPAGATION_FINALIZERS:
        accepted = ", ".join(PROPAGATION_FINALIZERS)
        raise errors.bad_request(f"propagationPolicy is {quoted(policy)}; {accepted} are accepted")
    finalizer, before = PROPAGATION_FINALIZERS[policy], obj.metadata.finalizers
    finalizers = tuple(name for name in before if name == finalizer or name not in POLICY_OF_FINALIZER)
    if finalizer and finalizer not in finalizers:
        finalizers += (finalizer,)
    return obj if finalizers == before else with_metadata(obj, finalizers=finalizers)


def _with_finalizer(obj: Any, name: str) -> Any:
    finalizers = obj.metadata.finalizers
    return obj if name in finalizers else with_metadata(obj, finalizers=(*finalizers, name))


def _with_deletion_timestamp(obj: Any, end: datetime.datetime, grace: int) -> Any:
    return with_metadata(obj, deletion_timestamp=format_time(end), deletion_grace_period_seconds=grace)


def _prepare_namespace_delete(resource: AnyResource, obj: Any, now: datetime.datetime) -> Any:
    if obj.metadata.name in SYSTEM_NAMESPACES:
        raise errors.forbidden(resource, obj.metadata.name, "this namespace may not be deleted")
    if obj.metadata.deletion_timestamp:
        return obj
    ending = msgspec.structs.replace(obj, status=NamespaceStatus(phase="Terminating"))
    return with_metadata(ending, deletion_timestamp=format_time(now))


def _grace_seconds(pod: Pod, options: DeleteOptions, node: Node | None) -> int:
    """Return the seconds until the pod must have ended; 0 if it has no kubelet or has already ended.

    A negative grace period counts as one second: only 0 deletes a pod without waiting for its containers.
    """
    if node is None or pod.status.phase in FINAL_PHASES:
        return 0
    seconds = options.grace_period_seconds
    if seconds is None:
        own = pod.spec.termination_grace_period_seconds
        seconds = DEFAULT_GRACE_SECONDS if own is None else own
    return min(seconds, MAX_GRACE_SECONDS) if seconds >= 0 else 1
