"""ProjectRequest: creates a project whose requester is its administrator. It is not stored.

Source: project.openshift.io of OpenShift. Raises `StatusError`.
"""

from __future__ import annotations

import uuid
from typing import Any

import msgspec

from api.meta.schema import without_nulls
from api.meta.types import ObjectMeta, StatusDetails
from api.validation.registry import default
from master import errors
from master.auth.rbac import Requester
from master.registry import decoding, strategy
from master.registry.creation import ObjectCreation
from master.registry.guaranteed_update import WriteDecision, guaranteed_update
from master.registry.request import Response
from master.request_info import RequestInfo
from master.resources import rbac
from master.resources.namespaces import (
    DESCRIPTION_ANNOTATION,
    DISPLAY_NAME_ANNOTATION,
    PROJECT_GROUP,
    PROJECT_REQUESTS,
    PROJECTS,
    REQUESTER_ANNOTATION,
    ProjectRequest,
)
from master.resources.scheme import BY_KIND
from master.storage.interface import Key, Put, Storage, Transaction

RESERVED_PREFIXES = ("openshift-", "kube-", "kubernetes-")
"""Prefixes of names that are reserved for the cluster."""


def not_allowed() -> errors.StatusError:
    """Return 403 for a user who may not request projects, in the words of OpenShift."""
    details = StatusDetails(group=PROJECT_GROUP, kind=PROJECT_REQUESTS)
    return errors.status_error(403, "Forbidden", "You may not request a new project via this API.", details)


def decode_project_request(document: object) -> ProjectRequest:
    """Return the ProjectRequest in a body."""
    if not isinstance(document, dict):
        raise errors.bad_request("the body is not a ProjectRequest: a JSON object is accepted")
    try:
        request = msgspec.convert(without_nulls(document), ProjectRequest)
    except msgspec.ValidationError as error:
        raise errors.bad_request(f"the body is not a ProjectRequest: {error}") from error
    for prefix in RESERVED_PREFIXES:
        if request.metadata.name.startswith(prefix):
            reason = f'cannot request a project starting with "{prefix}"'
            raise errors.forbidden(PROJECTS, request.metadata.name, reason)
    return request


def requested_project(request: ProjectRequest, requester: str) -> dict[str, Any]:
    """Return the document of the requested project.

    Other annotations and labels of the request are dropped: they would choose the user IDs of the project's pods, or
    their security.
    """
    annotations = {
        DISPLAY_NAME_ANNOTATION: request.display_name,
        DESCRIPTION_ANNOTATION: request.description,
        REQUESTER_ANNOTATION: requester,
    }
    return {"metadata": {"name": request.metadata.name, "annotations": annotations}}


def admin_binding(project: str, user: str) -> rbac.RoleBinding:
    """Return the binding that makes a user the administrator of a project."""
    return rbac.RoleBinding(
        metadata=ObjectMeta(name="admin", namespace=project),
        subjects=(rbac.Subject(kind="User", api_group=rbac.RBAC_GROUP, name=user),),
        role_ref=rbac.RoleRef(api_group=rbac.RBAC_GROUP, kind=rbac.ClusterRole.KIND, name="admin"),
    )


class ProjectRequests:
    """Serves POST projectrequests."""

    def __init__(self, storage: Storage, creation: ObjectCreation) -> None:
        self._store = storage
        self._creation = creation

    async def create(self, requester: Requester, document: object, *, dry_run: bool) -> Response:
        """Create the project, and the binding that makes its requester its administrator, in one write."""
        request = decode_project_request(document)
        return await guaranteed_update(
            self._store, PROJECTS, request.metadata.name, lambda: self._decide(requester, request, is_dry_run=dry_run)
        )

    def _decide(self, requester: Requester, request: ProjectRequest, *, is_dry_run: bool) -> WriteDecision[Response]:
        document = requested_project(request, requester.user.name)
        body = decoding.decode_object(RequestInfo(PROJECTS), document, "Ignore")
        name = body.object.metadata.name
        key = Key(PROJECTS.stored_group_resource, "", name)
        if self._store.get_uncommitted(key) is not None:
            raise errors.already_exists(PROJECTS, name)
        transaction = Transaction(self._store)
        project = self._creation.create(PROJECTS, body.object, transaction)
        resource = BY_KIND[rbac.RoleBinding.KIND]
        binding = default(admin_binding(name, requester.user.name), resource.rules)
        binding = strategy.prepare_create(resource, binding, str(uuid.uuid4()), self._creation.clock())

        def respond(stored: tuple[Any, ...]) -> Response:
            return Response(201, msgspec.json.encode(PROJECTS.from_stored(stored[1]) if stored else project))

        # The binding comes first, because a watch of projects shows only those that its user may get.
        changes = (
            Put(Key.of(resource.group_resource, binding), binding),
            Put(key, PROJECTS.to_stored(project), expect=0),
            *transaction.changes,
        )
        return WriteDecision(respond, changes, is_dry_run)
