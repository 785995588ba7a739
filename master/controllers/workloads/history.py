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
    """`current` has the template of its owner, `old` are the others, oldest first; `writes` are missing in the store.

    There is no current one while a name is not to be had: then the number of collisions is `collisions`.
    """

    current: ControllerRevision | None
    old: tuple[ControllerRevision, ...]
    collisions: int
    writes: tuple[WriteAction, ...]


def template_of(revision: ControllerRevision) -> PodTemplateSpec | None:
    """The template that a revision holds; None if it holds none."""
    held = revision.data.get("spec", {}).get("template") if isinstance(revision.data, dict) else None
    try:
        return default_template(msgspec.convert(_without_directive(held), PodTemplateSpec))
    except msgspec.ValidationError:
        return None


def _without_directive(held: Any) -> Any:
    return {key: value for key, value in held.items() if key != "$patch"} if isinstance(held, Mapping) else held


def hash_of(revision: ControllerRevision) -> str:
    """What the pods of a DaemonSet of that revision are labelled with."""
    return revision.metadata.labels.get(HASH_LABEL, "")


def revision_history(owner: Owner, revisions: Iterable[ControllerRevision], used: Collection[str]) -> RevisionHistory:
    """Of one owner. `used` are the names of revisions from which there are pods."""
    near = [one for one in revisions if one.metadata.namespace == owner.metadata.namespace]
    mine = sorted(
        (one for one in near if (row := controller_of(one.metadata)) and row.uid == owner.metadata.uid),
        key=lambda one: (one.revision, one.metadata.name),
    )
    wish = default_template(owner.spec.template)
    current = next((one for one in reversed(mine) if template_of(one) == wish), None)
    old = tuple(one for one in mine if one is not current)
    newest = max((one.revision for one in old), default=0)
    collisions = owner.status.collision_count or 0
    if current is None:
        made = _new_revision(owner, newest + 1, collisions)
        taken = next((one for one in near if one.metadata.name == made.metadata.name), None)
        if taken is None:
            return RevisionHistory(made, old, collisions, (Create(made), *_prune(owner, old, used)))
        if controller_of(taken.metadata) is None and template_of(taken) == wish:
            owners = (*taken.metadata.owner_references, controller_reference(owner))
            adopted = replace(taken, metadata=replace(taken.metadata, owner_references=owners), revision=newest + 1)
            return RevisionHistory(adopted, old, collisions, (Update(adopted, taken),))
        return RevisionHistory(None, old, collisions + 1, ())
    told = replace(current, revision=max(current.revision, newest + 1))
    changed = (Update(told, current),) if told != current else ()
    return RevisionHistory(told, old, collisions, (*changed, *_prune(owner, old, used)))


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
        data={"spec": {"template": _as_patch(template)}},
        revision=number,
    )


def _as_patch(template: PodTemplateSpec) -> Any:
    """Byte for byte what kubectl makes of the same template: by that it knows which revision is the current one.

    Go writes a part that has no pointer to it although nothing is in it.
    """
    document = msgspec.to_builtins(template)
    document["metadata"] = {"creationTimestamp": None, **document.get("metadata", {})}
    spec = document.get("spec", {})
    for field in ("containers", "initContainers"):
        if field in spec:
            spec[field] = [{"resources": {}, **container} for container in spec[field]]
    return _sorted({**document, "$patch": "replace"})


def _sorted(value: Any) -> Any:
    """With the keys of all objects in order, as Go writes maps."""
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list | tuple) else value


def _prune(owner: Owner, old: tuple[ControllerRevision, ...], used: Collection[str]) -> Iterator[ForceDelete]:
    """Of the old ones from which there is no pod, as many stay as the history is to have."""
    limit = owner.spec.revision_history_limit
    if limit is None:
        return
    idle = [one for one in old if one.metadata.name not in used]
    yield from (ForceDelete(one) for one in idle[: max(0, len(idle) - limit)])
