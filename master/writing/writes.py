"""What a write makes of an object: what the server sets, what a client may not change, what a deletion does. Pure.

Raises `answers.Failure` where the write is not allowed.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from api.core.auth import LocalSubjectAccessReview
from api.core.node import Binding, NamespaceStatus, Node
from api.core.pod import FINAL_PHASES, Pod
from api.meta.schema import FORBIDDEN, MISSING, UNKNOWN, FieldError, quoted, without_nulls
from api.meta.types import Condition, Object
from api.validation.registry import decode, default, immutable
from master.access import reviews
from master.kinds.kind import AnyKind, parse_time, show_time, with_metadata
from master.kinds.namespace import LASTING
from master.wire import answers
from master.wire.readable import unreadable
from master.wire.request import Target
from master.writing import apply
from master.writing.apply import Owner

DEFAULT_GRACE = 30
"""Seconds that a pod has for its end if it does not say."""

LONGEST_GRACE = (1 << 31) - 1

NAME_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""Letters of generated names: no vowels, so that they make no words."""

LONGEST_GENERATED = 63

FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"
"""Finalizers by which an owner waits until its dependents are gone, or let go."""

BACKGROUND = "Background"
POLICIES = {BACKGROUND: "", "Foreground": FOREGROUND, "Orphan": ORPHAN}
"""What becomes of dependents → the finalizer that has it done."""


@dataclass(frozen=True, slots=True)
class Body:
    """An object from a client, accepted; the warnings go back with the answer."""

    item: Any
    warnings: tuple[str, ...]


def read(where: Target, document: object, strictness: str, random_letters: Callable[[], str] | None = None) -> Body:
    """The object in a request's body. `random_letters` (five of NAME_LETTERS) completes a generateName."""
    kind = where.kind
    if not isinstance(document, dict):
        raise answers.bad_request(f"the body is not a {kind.name}: a JSON object is accepted")
    document = _placed(where, _typed(kind, document), random_letters)
    item, problems, warnings = decode(kind.type, document, kind.rules)
    told_of = {problem.path for problem in problems}
    found = unreadable(kind.type.API_VERSION, kind.name, document)
    problems = (*problems, *(problem for problem in found if problem.path not in told_of))
    unknown = [problem for problem in problems if problem.reason == UNKNOWN]
    if unknown and strictness == "Strict":
        raise answers.unknown_fields(kind, [problem.path for problem in unknown])
    told = tuple(f'unknown field "{problem.path}"' for problem in unknown if strictness == "Warn")
    refused = [problem for problem in problems if problem.reason != UNKNOWN]
    if refused or item is None:
        name = document["metadata"].get("name") if isinstance(document["metadata"], dict) else ""
        with answers.warned(told):
            raise answers.invalid(kind, name if isinstance(name, str) else "", refused)
    return Body(with_metadata(default(item, kind.rules), managed_fields=None, self_link=""), (*told, *warnings))


def _typed(kind: AnyKind, document: Mapping[str, Any]) -> dict[str, Any]:
    version = kind.type.API_VERSION
    if document.get("apiVersion") not in (None, "", version):
        raise answers.bad_request(
            f"the API version in the data ({document['apiVersion']}) does not match the expected API version "
            f"({version})"
        )
    if document.get("kind") not in (None, "", kind.name):
        raise answers.bad_request(f'{document["kind"]} in version "{version}" cannot be handled as a {kind.name}')
    return {**document, "apiVersion": version, "kind": kind.name}


def _placed(where: Target, document: dict[str, Any], random_letters: Callable[[], str] | None) -> dict[str, Any]:
    """The document with namespace and name as the path has them, which it may leave out but not contradict."""
    given = document.get("metadata")
    if given is not None and not isinstance(given, dict):
        return document
    metadata = dict(given or {})
    if where.kind.namespaced:
        check_namespace(metadata.get("namespace"), where.namespace)
        metadata["namespace"] = where.namespace
    if where.name:
        if metadata.get("name") not in (None, "", where.name):
            raise answers.bad_request(
                f"the name of the object ({metadata['name']}) does not match the name on the URL ({where.name})"
            )
        metadata["name"] = where.name
    prefix = metadata.get("generateName")
    if not metadata.get("name") and prefix and isinstance(prefix, str) and random_letters is not None:
        metadata["name"] = completed(prefix, random_letters())
    return {**document, "metadata": metadata}


def check_namespace(given: object, wanted: str) -> None:
    """Raise the refusal of a body that names another namespace than the path; it may leave it out."""
    if given not in (None, "", wanted):
        raise answers.bad_request(
            f"the namespace of the provided object ({given}) does not match the namespace sent on the request "
            f"({wanted})"
        )


def completed(prefix: str, letters: str) -> str:
    """A generated name."""
    return prefix[: LONGEST_GENERATED - len(letters)] + letters


def asked(kind: type[Object], document: object, namespace: str) -> Object:
    """A review in a request's body, which is answered and not kept."""
    if not isinstance(document, dict):
        raise answers.bad_request(f"the body is not a {kind.KIND}: a JSON object is accepted")
    for name, wanted in (("kind", kind.KIND), ("apiVersion", kind.API_VERSION)):
        if document.get(name) not in (None, "", wanted):
            raise answers.bad_request(f"{name} is {quoted(document[name])}; {wanted} is accepted here")
    try:
        review = msgspec.convert(without_nulls(document), kind)
    except msgspec.ValidationError as error:
        raise answers.bad_request(f"the body is not a {kind.KIND}: {error}") from error
    found = reviews.problems(review)
    if found:
        raise answers.invalid_review(kind.KIND, found)
    if review.metadata.namespace not in ("", namespace):
        raise answers.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    if isinstance(review, LocalSubjectAccessReview):
        access = review.spec.resource_attributes
        if access is not None and access.namespace != namespace:
            raise answers.bad_request(f"spec.resourceAttributes.namespace must match namespace: {namespace}")
    return review


# --- create and update ------------------------------------------------------------------------------------------------


def created(kind: AnyKind, item: Any, uid: str, now: datetime.datetime) -> Any:
    """The object as it begins."""
    if isinstance(item, Pod) and item.spec.ephemeral_containers:
        why = "they are added to a pod that there is, through its subresource ephemeralcontainers"
        raise answers.invalid(
            kind, item.metadata.name, [FieldError("spec.ephemeralContainers", "given", why, FORBIDDEN)]
        )
    begun = with_metadata(
        item,
        uid=uid,
        resource_version="",
        creation_timestamp=show_time(now),
        generation=1 if kind.spec is not None else 0,
        deletion_timestamp=None,
        deletion_grace_period_seconds=None,
    )
    return kind.on_create(begun)


def updated(kind: AnyKind, new: Any, old: Any) -> Any:
    """The object after an update of all but its status."""
    _check_identity(kind, new, old)
    new = kind.on_update(_as_old(new, old), old)
    problems = list(immutable(old, new, kind.rules))
    added = [name for name in new.metadata.finalizers if name not in old.metadata.finalizers]
    if old.metadata.deletion_timestamp and added:
        why = "no new finalizers can be added if the object is being deleted"
        problems.append(FieldError("metadata.finalizers", quoted(added), why, FORBIDDEN))
    if problems:
        raise answers.invalid(kind, old.metadata.name, problems)
    return _counted(kind, new, old)


def _counted(kind: AnyKind, new: Any, old: Any) -> Any:
    """With the next generation, if what counts has changed."""
    if kind.spec is None or kind.spec(new) == kind.spec(old):
        return new
    return with_metadata(new, generation=old.metadata.generation + 1)


def part_updated(kind: AnyKind, name: str, new: Any, old: Any) -> Any:
    """The object after an update of the part that the subresource of that name is, and of nothing else."""
    subresource = kind.subresource(name)
    if subresource is None or subresource.part is None:
        raise answers.no_such_path()
    _check_identity(kind, new, old)
    item, problems = subresource.part(new, old)
    if problems:
        raise answers.invalid(kind, old.metadata.name, list(problems))
    return _counted(kind, item, old)


# --- who owns which field ---------------------------------------------------------------------------------------------


def applicable(where: Target, document: object, manager: str) -> dict[str, Any]:
    """The part of an apply's body that its path is about. Raises Failure if it is no body of an apply."""
    if not manager:
        problem = FieldError("fieldManager", '""', "is required for apply patch", MISSING)
        raise answers.invalid_options("PatchOptions", problem)
    if not isinstance(document, dict) or not isinstance(document.get("metadata"), dict):
        raise answers.bad_request(f"the body is not a {where.kind.name}: an object with metadata is accepted")
    if document["metadata"].get("managedFields") is not None:
        raise answers.bad_request("metadata.managedFields must be nil")
    wish: dict[str, Any] = without_nulls(_typed(where.kind, document))  # type: ignore[assignment]
    if where.subresource == "status":
        return {key: value for key, value in wish.items() if key in ("apiVersion", "kind", "status")}
    return {key: value for key, value in wish.items() if key != "status" or where.kind.with_status is None}


def owners_after(kind: AnyKind, old: Any, new: Any, sent: Mapping[str, Any], me: Owner) -> tuple[Owner, ...]:
    """The owners after a write that was no apply.

    A client that sends another record than there was sets it, as kubectl does when it hands fields of client-side apply
    over; an empty one ends it.
    """
    had = old.metadata.managed_fields
    given = (sent.get("metadata") or {}).get("managedFields")
    if had is None and not given:
        return ()
    before, after = msgspec.to_builtins(old), msgspec.to_builtins(new)
    owners = apply.owners_in(before if given is None else sent)
    return apply.tracked(before, after, kind.shape, owners, me)


def owned(item: Any, owners: Sequence[Owner]) -> Any:
    """The object with the record of its owners."""
    return with_metadata(item, managed_fields=apply.managed_fields(owners) or None)


def _check_identity(kind: AnyKind, new: Any, old: Any) -> None:
    if new.metadata.resource_version not in ("", "0", old.metadata.resource_version):
        raise answers.conflict(kind, old.metadata.name)
    if new.metadata.uid not in ("", old.metadata.uid):
        raise answers.other_uid(kind, old.metadata.name, new.metadata.uid, old.metadata.uid)


def _as_old(new: Any, old: Any) -> Any:
    """The new object with those parts of the metadata that no client changes."""
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


def may_go(kind: AnyKind, item: Any) -> bool:
    """Whether an object that is being deleted has nothing left to wait for."""
    return bool(item.metadata.deletion_timestamp) and not item.metadata.finalizers and not kind.held(item)


# --- delete -----------------------------------------------------------------------------------------------------------


class Preconditions(msgspec.Struct, frozen=True, rename="camel"):
    """What must hold of the object that is to be deleted."""

    uid: str | None = None
    resource_version: str | None = None


class DeleteOptions(msgspec.Struct, frozen=True, rename="camel"):
    """The body of a delete; `grace_period_seconds` left out means what the object says.

    `propagation_policy` says what becomes of dependents: Background, Foreground or Orphan; without it the kind decides.
    """

    grace_period_seconds: int | None = None
    propagation_policy: str = ""
    orphan_dependents: bool | None = None
    preconditions: Preconditions | None = None
    dry_run: tuple[str, ...] = ()


def check_preconditions(kind: AnyKind, item: Object, options: DeleteOptions) -> None:
    """Raise the conflict if the object is not the one that was meant."""
    wanted, found = options.preconditions or Preconditions(), item.metadata
    if wanted.uid is not None and wanted.uid != found.uid:
        why = (
            f"the UID in the precondition ({wanted.uid}) does not match the UID in record ({found.uid}). "
            "The object might have been deleted and then recreated"
        )
        raise answers.other_object(kind, found.name, why)
    if wanted.resource_version is not None and wanted.resource_version != found.resource_version:
        why = (
            f"the ResourceVersion in the precondition ({wanted.resource_version}) does not match the ResourceVersion "
            f"in record ({found.resource_version}). The object might have been modified"
        )
        raise answers.other_object(kind, found.name, why)


def deleted(
    kind: AnyKind, item: Any, options: DeleteOptions, now: datetime.datetime, node: Node | None = None
) -> Any | None:
    """What a delete leaves of an object: the object marked for its end, or None if it goes at once.

    `node` is the node that a pod is bound to, if there is such a node.
    """
    if kind.name == "Namespace":
        return _deleted_namespace(kind, item, now)
    item = _with_policy(item, _policy(kind, options))
    grace = _grace(item, options, node) if isinstance(item, Pod) else 0
    if grace == 0 and not item.metadata.finalizers:
        return None
    since = parse_time(item.metadata.deletion_timestamp)
    before = item.metadata.deletion_grace_period_seconds
    if since is None:
        return _marked(item, now + datetime.timedelta(seconds=grace), grace)
    if before is None or grace >= before:
        return item
    return _marked(item, since - datetime.timedelta(seconds=before - grace), grace)


def _policy(kind: AnyKind, options: DeleteOptions) -> str:
    if options.propagation_policy or options.orphan_dependents is None:
        return options.propagation_policy or ("Orphan" if kind.orphans else BACKGROUND)
    return "Orphan" if options.orphan_dependents else BACKGROUND


def _with_policy(item: Any, policy: str) -> Any:
    if policy not in POLICIES:
        accepted = ", ".join(POLICIES)
        raise answers.bad_request(f"propagationPolicy is {quoted(policy)}; {accepted} are accepted")
    finalizer = POLICIES[policy]
    if not finalizer or finalizer in item.metadata.finalizers:
        return item
    return with_metadata(item, finalizers=(*item.metadata.finalizers, finalizer))


def _marked(item: Any, end: datetime.datetime, grace: int) -> Any:
    return with_metadata(item, deletion_timestamp=show_time(end), deletion_grace_period_seconds=grace)


def _deleted_namespace(kind: AnyKind, item: Any, now: datetime.datetime) -> Any:
    if item.metadata.name in LASTING:
        raise answers.forbidden(kind, item.metadata.name, "this namespace may not be deleted")
    if item.metadata.deletion_timestamp:
        return item
    ending = msgspec.structs.replace(item, status=NamespaceStatus(phase="Terminating"))
    return with_metadata(ending, deletion_timestamp=show_time(now))


def _grace(pod: Pod, options: DeleteOptions, node: Node | None) -> int:
    """Seconds until the pod must have ended; 0 where nobody is there to end it, or nothing is left to end.

    Less than nothing counts as one second: only a plain 0 ends a pod without waiting for its containers.
    """
    if node is None or pod.status.phase in FINAL_PHASES:
        return 0
    asked = options.grace_period_seconds
    if asked is None:
        own = pod.spec.termination_grace_period_seconds
        asked = DEFAULT_GRACE if own is None else own
    return min(asked, LONGEST_GRACE) if asked >= 0 else 1


# --- binding ----------------------------------------------------------------------------------------------------------


def bound(kind: AnyKind, pod: Pod, binding: Binding, now: datetime.datetime) -> Pod:
    """The pod, placed on the node that the binding names."""
    name, found, target = pod.metadata.name, binding.metadata, binding.target
    if found.name not in ("", name):
        raise answers.bad_request("name in URL does not match name in Binding object")
    if target is None or target.kind not in ("", "Node") or not target.name:
        raise answers.bad_request("the Binding has no target of kind Node with a name")
    if found.uid not in ("", pod.metadata.uid):
        raise answers.other_uid(kind, name, found.uid, pod.metadata.uid)
    if pod.metadata.deletion_timestamp:
        raise answers.conflict(kind, name, "the pod is being deleted and cannot be assigned to a node")
    if pod.spec.node_name:
        raise answers.conflict(kind, name, f"the pod is already assigned to node {pod.spec.node_name!r}")
    return placed(pod, target.name, now)


def placed(pod: Pod, node: str, now: datetime.datetime) -> Pod:
    """The pod on that node, with the condition that says so."""
    scheduled = Condition(type="PodScheduled", status="True", last_transition_time=show_time(now))
    conditions = (*(row for row in pod.status.conditions if row.type != "PodScheduled"), scheduled)
    return msgspec.structs.replace(
        pod,
        spec=msgspec.structs.replace(pod.spec, node_name=node),
        status=msgspec.structs.replace(pod.status, conditions=conditions, nominated_node_name=""),
    )
