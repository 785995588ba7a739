"""Namespace, and Project and ProjectRequest of OpenShift's project.openshift.io. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from api.core.node import NODE_LEASES, Namespace, NamespaceSpec, NamespaceStatus
from api.meta import names
from api.meta.schema import FieldError, quoted
from api.meta.types import Object
from api.validation.registry import RULES, KindRules, default
from master.resources.metadata import with_metadata
from master.resources.printing import AGE, NAME
from master.resources.resource import VERBS, Column, Resource, Subresource, Version

KUBERNETES_FINALIZER = "kubernetes"
"""The finalizer in `spec.finalizers`, which is removed when the namespace is empty."""

NAMESPACE_NAME_LABEL = "kubernetes.io/metadata.name"

SYSTEM_NAMESPACES = ("default", NODE_LEASES, "kube-public", "kube-system")
"""Namespaces that are always there. They belong to the cluster: the master gives them VNID 0, which
reaches all projects and is reached by all."""


def _with_name_label(namespace: Namespace) -> Namespace:
    return with_metadata(namespace, labels={**namespace.metadata.labels, NAMESPACE_NAME_LABEL: namespace.metadata.name})


def _prepare_namespace_for_create(namespace: Namespace) -> Namespace:
    finalizers = tuple(dict.fromkeys((*namespace.spec.finalizers, KUBERNETES_FINALIZER)))
    spec, status = NamespaceSpec(finalizers=finalizers), NamespaceStatus(phase="Active")
    return msgspec.structs.replace(_with_name_label(namespace), spec=spec, status=status)


def _prepare_namespace_for_update(new: Namespace, old: Namespace) -> Namespace:
    return msgspec.structs.replace(_with_name_label(new), spec=old.spec, status=old.status)


def _namespace_with_status(new: Namespace, old: Namespace) -> Namespace:
    phase = old.status.phase  # Whether a namespace is on its way out is decided by its deletion alone.
    return msgspec.structs.replace(old, status=msgspec.structs.replace(new.status, phase=phase))


def _replace_finalizers(new: Namespace, old: Namespace) -> tuple[Namespace, tuple[FieldError, ...]]:
    return msgspec.structs.replace(old, spec=new.spec), ()


NAMESPACES = Resource(
    type=Namespace,
    short_names=("ns",),
    columns=(
        NAME,
        Column(
            "Status",
            "Active, or Terminating while its contents go away.",
            lambda namespace, _: namespace.status.phase or "Active",
        ),
        AGE,
    ),
    rules=RULES[Namespace],
    selectable_fields=lambda namespace: {"status.phase": namespace.status.phase, "name": namespace.metadata.name},
    prepare_for_create=_prepare_namespace_for_create,
    prepare_for_update=_prepare_namespace_for_update,
    with_status=_namespace_with_status,
    blocks_deletion=lambda namespace: bool(namespace.spec.finalizers),
    subresources=(Subresource("finalize", replace=_replace_finalizers, verbs=("update",)),),
    verbs=tuple(verb for verb in VERBS if verb != "deletecollection"),
    acted_on_by=(
        "the master creates a NetNamespace, a service account and a ConfigMap with the CA certificate for "
        "each, and deletes its contents with it"
    ),
)

PROJECT_GROUP = "project.openshift.io"
PROJECT_REQUESTS = "projectrequests"
PROJECT_REQUESTS_PATH = f"/apis/{PROJECT_GROUP}/v1/{PROJECT_REQUESTS}"
DISPLAY_NAME_ANNOTATION, DESCRIPTION_ANNOTATION = "openshift.io/display-name", "openshift.io/description"
REQUESTER_ANNOTATION = "openshift.io/requester"
"""Annotations of a namespace: its title, its description, and the user who requested it."""

MUTABLE_ANNOTATIONS = (DISPLAY_NAME_ANNOTATION, DESCRIPTION_ANNOTATION)


class Project(Object, frozen=True):
    """A namespace. A list of projects contains only those that the user may get."""

    API_VERSION = f"{PROJECT_GROUP}/v1"
    KIND = "Project"
    PLURAL = "projects"
    NAMESPACED = False

    spec: NamespaceSpec = NamespaceSpec()
    status: NamespaceStatus = NamespaceStatus()


class ProjectRequest(Object, frozen=True):
    """A request to create a project of this name; `display_name` is its title. It is not stored."""

    API_VERSION = f"{PROJECT_GROUP}/v1"
    KIND = "ProjectRequest"

    display_name: str = ""
    description: str = ""


def _project_from_stored(namespace: Namespace) -> Project:
    return Project(
        api_version=Project.API_VERSION,
        kind=Project.KIND,
        metadata=namespace.metadata,
        spec=namespace.spec,
        status=namespace.status,
    )


def _project_to_stored(project: Project) -> Namespace:
    return Namespace(metadata=project.metadata, spec=project.spec, status=project.status)


def _as_namespace(act: Callable[[Namespace], Namespace]) -> Callable[[Project], Project]:
    return lambda project: _project_from_stored(act(_project_to_stored(project)))


def _validate_project_update(old: Project, new: Project) -> Iterator[FieldError]:
    """Yield an error for each change except of the display name and description.

    With a finalizer or an owner, the administrator of a project could keep it from being deleted, or have it deleted.
    """
    reason = "field is immutable, try updating the namespace"
    before, after = old.metadata, new.metadata
    for key in sorted(before.annotations.keys() | after.annotations.keys()):
        if key not in MUTABLE_ANNOTATIONS and before.annotations.get(key) != after.annotations.get(key):
            yield FieldError(f"metadata.annotations[{key}]", quoted(after.annotations.get(key)), reason)
    for key in sorted(before.labels.keys() | after.labels.keys()):
        if before.labels.get(key) != after.labels.get(key):
            yield FieldError(f"metadata.labels[{key}]", quoted(after.labels.get(key)), reason)
    if before.finalizers != after.finalizers:
        yield FieldError("metadata.finalizers", quoted(after.finalizers), reason)
    if before.owner_references != after.owner_references:
        names = [owner.name for owner in after.owner_references]
        yield FieldError("metadata.ownerReferences", quoted(names), reason)


PROJECTS = Resource(
    type=Project,
    columns=(
        NAME,
        Column(
            "Display Name",
            "Title of the project.",
            lambda project, _: project.metadata.annotations.get(DISPLAY_NAME_ANNOTATION, ""),
        ),
        Column(
            "Status",
            "Active, or Terminating while its contents go away.",
            lambda project, _: project.status.phase or "Active",
        ),
    ),
    selectable_fields=lambda project: NAMESPACES.selectable_fields(_project_to_stored(project)),
    prepare_for_create=_as_namespace(NAMESPACES.prepare_for_create),
    prepare_for_update=lambda new, old: _project_from_stored(
        NAMESPACES.prepare_for_update(_project_to_stored(new), _project_to_stored(old))
    ),
    rules=KindRules(
        default=_as_namespace(lambda namespace: default(namespace, NAMESPACES.rules)),
        validate_update=_validate_project_update,
        validate_name=names.dns_label_error,
    ),
    with_status=None,
    stored_as=Version(NAMESPACES, _project_from_stored, _project_to_stored),
    filtered_list=True,
    verbs=("create", "delete", "get", "list", "patch", "update", "watch"),
    acted_on_by="those that the user may read",
)
