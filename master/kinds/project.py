"""Project: a namespace as those see it who may read it. Pure.

Source: project.openshift.io of OpenShift.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator

from api.core.node import Namespace, NamespaceSpec, NamespaceStatus
from api.meta import names
from api.meta.schema import FieldError, quoted
from api.meta.types import Object
from api.validation.registry import KindRules, default
from master.kinds.kind import NAME, Column, Conversion, Kind
from master.kinds.namespace import NAMESPACE

GROUP = "project.openshift.io"
REQUESTS = "projectrequests"
DISPLAY_NAME, DESCRIPTION = "openshift.io/display-name", "openshift.io/description"
REQUESTER = "openshift.io/requester"
"""Annotations of a namespace: what people call it, what it is for, who asked for it."""

CHANGED_HERE = (DISPLAY_NAME, DESCRIPTION)


class Project(Object, frozen=True):
    """A namespace. Whoever lists projects is shown those that he may read."""

    API_VERSION = f"{GROUP}/v1"
    KIND = "Project"

    spec: NamespaceSpec = NamespaceSpec()
    status: NamespaceStatus = NamespaceStatus()


class ProjectRequest(Object, frozen=True):
    """Asks for a project of its name; `display_name` is what people call it. It is answered, and not kept."""

    API_VERSION = f"{GROUP}/v1"
    KIND = "ProjectRequest"

    display_name: str = ""
    description: str = ""


def _seen(item: Namespace) -> Project:
    return Project(
        api_version=Project.API_VERSION, kind=Project.KIND, metadata=item.metadata, spec=item.spec, status=item.status
    )


def _kept(item: Project) -> Namespace:
    return Namespace(metadata=item.metadata, spec=item.spec, status=item.status)


def _as_namespace(act: Callable[[Namespace], Namespace]) -> Callable[[Project], Project]:
    return lambda item: _seen(act(_kept(item)))


def _immutable(old: Project, new: Project) -> Iterator[FieldError]:
    """Of a project only what people call it is changed; the rest is the namespace's."""
    why = "field is immutable, try updating the namespace"
    before, after = old.metadata, new.metadata
    for key in sorted(before.annotations.keys() | after.annotations.keys()):
        if key not in CHANGED_HERE and before.annotations.get(key) != after.annotations.get(key):
            yield FieldError(f"metadata.annotations[{key}]", quoted(after.annotations.get(key)), why)
    for key in sorted(before.labels.keys() | after.labels.keys()):
        if before.labels.get(key) != after.labels.get(key):
            yield FieldError(f"metadata.labels[{key}]", quoted(after.labels.get(key)), why)


def _cells(item: Project, now: datetime.datetime) -> tuple[object, ...]:
    del now
    return item.metadata.name, item.metadata.annotations.get(DISPLAY_NAME, ""), item.status.phase or "Active"


PROJECT = Kind(
    type=Project,
    plural="projects",
    singular="project",
    namespaced=False,
    columns=(
        NAME,
        Column("Display Name", "What people call it."),
        Column("Status", "Active, or Terminating while its contents go away."),
    ),
    cells=_cells,
    fields=lambda item: NAMESPACE.fields(_kept(item)),
    on_create=_as_namespace(NAMESPACE.on_create),
    on_update=lambda new, old: _seen(NAMESPACE.on_update(_kept(new), _kept(old))),
    own_rules=KindRules(
        default=_as_namespace(lambda item: default(item, NAMESPACE.rules)), immutable=_immutable, name=names.dns_label
    ),
    conversion=Conversion(NAMESPACE, _seen, _kept),
    personal=True,
    verbs=("create", "delete", "get", "list", "patch", "update", "watch"),
)
