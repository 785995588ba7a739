"""ControllerRevisions: the template history of DaemonSets and StatefulSets. Pure.

A revision holds the patch that `kubectl rollout undo` sends: the whole template, which replaces the current one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from api.meta.types import ObjectMeta
from master.controllers.actions import Create, ForceDelete, Update, WriteAction
from master.controllers.workloads.pod_control import template_hash
from master.resources.daemon_sets import DaemonSet
from master.resources.metadata import controller_of, controller_reference
from master.resources.pod_template import PodTemplateSpec, default_template
from master.resources.stateful_sets import ControllerRevision, StatefulSet

Owner = DaemonSet | StatefulSet

HASH_LABEL = "controller-revision-hash"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass(frozen=True, slots=True)
class RevisionHistory:
    """The revisions of an owner. `current` has the template of the owner, `old` are the others, oldest first; `actions`
    write what is missing.

    `current` is None if the name of a new revision is taken; `collisions` is then incremented.
    """

    current: ControllerRevision | None
    old: tuple[ControllerRevision, ...]
    collisions: int
    actions: tuple[WriteAction, ...]


def template_of(revision: ControllerRevision) -> PodTemplateSpec | None:
    """Return the template in a revision; None if it has none."""
    template = revision.data.get("spec", {}).get("template") if isinstance(revision.data, dict) else None
    try:
        return default_template(msgspec.convert(_without_directive(template), PodTemplateSpec))
    except msgspec.ValidationError:
        return None


def _without_directive(template: Any) -> Any:
    return (
        {key: value for key, value in template.items() if key != "$patch"}
        if isinstance(template, Mapping)
        else template
    )


def hash_of(revision: ControllerRevision) -> str:
    """Return the label value of a revision for pods of a DaemonSet."""
    return revision.metadata.labels.get(HASH_LABEL, "")


def revision_history(owner: Owner, revisions: Iterable[ControllerRevision], used: Collection[str]) -> RevisionHistory:
    """Return the history of an owner. `used` are the names of revisions that pods have."""
    in_namespace = [revision for revision in revisions if revision.metadata.namespace == owner.metadata.namespace]
    owned = sorted(
        (
            revision
            for revision in in_namespace
            if (reference := controller_of(revision.metadata)) and reference.uid == owner.metadata.uid
        ),
        key=lambda revision: (revision.revision, revision.metadata.name),
    )
    template = default_template(owner.spec.template)
    current = next((revision for revision in reversed(owned) if template_of(revision) == template), None)
    old = tuple(revision for revision in owned if revision is not current)
    newest = max((revision.revision for revision in old), default=0)
    collisions = owner.status.collision_count or 0
    if current is None:
        new = _new_revision(owner, newest + 1, collisions)
        existing = next((revision for revision in in_namespace if revision.metadata.name == new.metadata.name), None)
        if existing is None:
            return RevisionHistory(new, old, collisions, (Create(new), *_prune(owner, old, used)))
        if controller_of(existing.metadata) is None and template_of(existing) == template:
            owners = (*existing.metadata.owner_references, controller_reference(owner))
            adopted = replace(
                existing, metadata=replace(existing.metadata, owner_references=owners), revision=newest + 1
            )
            return RevisionHistory(adopted, old, collisions, (Update(adopted, existing),))
        return RevisionHistory(None, old, collisions + 1, ())
    updated = replace(current, revision=max(current.revision, newest + 1))
    updates = (Update(updated, current),) if updated != current else ()
    return RevisionHistory(updated, old, collisions, (*updates, *_prune(owner, old, used)))


def _new_revision(owner: Owner, number: int, collisions: int) -> ControllerRevision:
    template = owner.spec.template
    digest = template_hash(template, collisions)
    annotations = {key: value for key, value in owner.metadata.annotations.items() if key != LAST_APPLIED}
    return ControllerRevision(
        metadata=ObjectMeta(
            name=f"{owner.metadata.name}-{digest}",
            namespace=owner.metadata.namespace,
            labels={**template.metadata.labels, HASH_LABEL: digest},
            annotations=annotations,
            owner_references=(controller_reference(owner),),
        ),
        # The suites of 1.36 compare those of DaemonSets; of StatefulSets, only `kubectl rollout undo` does.
        data={"spec": {"template": _as_patch(template, with_null_time=isinstance(owner, StatefulSet))}},
        revision=number,
    )


def _as_patch(template: PodTemplateSpec, *, with_null_time: bool) -> Any:
    """Return the template as kubectl encodes it, byte for byte: kubectl compares it to find the current revision. Go
    encodes a struct without pointer even if it is empty.

    `with_null_time` adds the null that clients before 1.34 have for a time that is not set.
    """
    document = msgspec.to_builtins(template)
    no_time = {"creationTimestamp": None} if with_null_time else {}
    document["metadata"] = {**no_time, **document.get("metadata", {})}
    spec = document.get("spec", {})
    for field in ("containers", "initContainers"):
        if field in spec:
            spec[field] = [{"resources": {}, **container} for container in spec[field]]
    return _sorted({**document, "$patch": "replace"})


def _sorted(value: Any) -> Any:
    """Return the document with sorted keys, as Go encodes maps."""
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(element) for element in value] if isinstance(value, list | tuple) else value


def _prune(owner: Owner, old: tuple[ControllerRevision, ...], used: Collection[str]) -> Iterator[ForceDelete]:
    """Yield the deletion of old revisions without pods beyond the history limit."""
    limit = owner.spec.revision_history_limit
    if limit is None:
        return
    unused = [revision for revision in old if revision.metadata.name not in used]
    yield from (ForceDelete(revision) for revision in unused[: max(0, len(unused) - limit)])
