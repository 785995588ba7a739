"""ProjectRequest: creates a project whose requester is its administrator. It is not stored.

Source: project.openshift.io of OpenShift. Raises `StatusError`.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from api.core.node import Namespace
from api.meta import names
from api.meta.schema import FieldError, quoted, without_nulls
from api.meta.types import StatusCause, StatusDetails
from master import errors
from master.admission.external_calls import PendingWrite
from master.auth.rbac import Requester
from master.config import MasterConfig
from master.registry.creation import ObjectCreation
from master.registry.guaranteed_update import WriteDecision, guaranteed_update
from master.registry.project_template import (
    BadTemplate,
    ProjectTemplate,
    TemplateObject,
    decode,
    parse_template,
    values_of,
)
from master.registry.registry import check_size
from master.registry.request import Response
from master.resources.metadata import parse_time, with_metadata
from master.resources.namespaces import (
    PROJECT_GROUP,
    PROJECT_REQUESTS,
    PROJECTS,
    REQUESTER_ANNOTATION,
    ProjectRequest,
)
from master.storage.interface import Key, Storage, Transaction
from reconcile.config_document import BadDocument, read_document
from reconcile.errors import Refused

RESERVED_NAMES = ("openshift", "kubernetes", "kube")
RESERVED_PREFIXES = ("openshift-", "kubernetes-", "kube-")
"""Names, and prefixes of names, that are reserved for the cluster."""

NOT_ALLOWED = "You may not request a new project via this API."

BUILTIN_TEMPLATE = Path(__file__).with_name("project_request_template.yaml")
"""The file of the default template."""


@dataclass(frozen=True, slots=True)
class ProjectRequestPolicy:
    """What requests create and who may send them.

    `message` is the answer to users who may not request projects. `max_per_user` limits the projects that a user has
    requested and that exist; None for no limit.
    """

    template: ProjectTemplate
    message: str = ""
    max_per_user: int | None = None


def load_policy(config: MasterConfig) -> ProjectRequestPolicy:
    """Return the policy of the configuration, with the template in its file.

    Raises Refused with one line for each problem.
    """
    path = Path(config.project_request_template or BUILTIN_TEMPLATE)
    try:
        template = parse_template(read_document(path))
    except BadDocument as error:
        raise Refused(f"projectRequestTemplate: {error}") from error
    except BadTemplate as error:
        raise Refused("\n".join(f"projectRequestTemplate: {path}: {text}" for text in error.problems)) from error
    return ProjectRequestPolicy(template, config.project_request_message, config.max_projects_per_user)


def not_allowed(message: str) -> errors.StatusError:
    """Return 403 for a user who may not request projects. OpenShift's clients print the message of the cause."""
    if message:
        details = StatusDetails(kind=ProjectRequest.KIND, causes=(StatusCause(message=message),))
        return errors.status_error(403, "Forbidden", message, details)
    details = StatusDetails(group=PROJECT_GROUP, kind=PROJECT_REQUESTS)
    return errors.status_error(403, "Forbidden", NOT_ALLOWED, details)


def decode_project_request(document: object) -> ProjectRequest:
    """Return the ProjectRequest in a body. Labels and annotations are dropped: they would choose the security of pods.

    Raises StatusError.
    """
    if not isinstance(document, dict):
        raise errors.bad_request("the body is not a ProjectRequest: a JSON object is accepted")
    try:
        request = msgspec.convert(without_nulls(document), ProjectRequest)
    except msgspec.ValidationError as error:
        raise errors.bad_request(f"the body is not a ProjectRequest: {error}") from error
    name = request.metadata.name
    if name in RESERVED_NAMES:
        raise errors.forbidden(PROJECTS, name, f'cannot request a project with the name "{name}"')
    for prefix in RESERVED_PREFIXES:
        if name.startswith(prefix):
            raise errors.forbidden(PROJECTS, name, f'cannot request a project starting with "{prefix}"')
    if problem := names.dns_label_error(name):
        raise errors.invalid(PROJECTS, name, [FieldError("metadata.name", quoted(name), problem)])
    return request


DELETION_TIME = datetime.timedelta(minutes=5)
"""Time after which a project that is still being deleted counts again: finalizers of its user can keep it."""


def check_count(
    request: ProjectRequest, user: str, namespaces: Iterable[Namespace], limit: int | None, now: datetime.datetime
) -> None:
    """Require that a user has requested fewer projects than the limit. Raises Forbidden."""
    if limit is None:
        return

    def counts(namespace: Namespace) -> bool:
        deleted = parse_time(namespace.metadata.deletion_timestamp)
        return namespace.metadata.annotations.get(REQUESTER_ANNOTATION) == user and (
            deleted is None or now - deleted > DELETION_TIME
        )

    requested = sum(map(counts, namespaces))
    if requested >= limit:
        reason = f"user {user} cannot create more than {limit} project(s)."
        raise errors.forbidden(PROJECTS, request.metadata.name, reason)


class ProjectRequests:
    """Serves POST projectrequests."""

    def __init__(self, storage: Storage, creation: ObjectCreation, policy: ProjectRequestPolicy) -> None:
        self._store = storage
        self._creation = creation
        self._policy = policy

    async def create(self, requester: Requester, document: object, *, dry_run: bool) -> Response:
        """Create the objects of the template for the requester, all in one write."""
        request, write = decode_project_request(document), PendingWrite()
        return await guaranteed_update(
            self._store,
            PROJECTS,
            request.metadata.name,
            lambda: self._decide(requester, request, write, is_dry_run=dry_run),
            write,
            self._creation.caller,
        )

    def _decide(
        self, requester: Requester, request: ProjectRequest, write: PendingWrite, *, is_dry_run: bool
    ) -> WriteDecision[Response]:
        name, user, template = request.metadata.name, requester.user.name, self._policy.template
        key = Key(PROJECTS.stored_group_resource, "", name)
        transaction = Transaction(self._store)
        if transaction.get(key) is not None:
            raise errors.already_exists(PROJECTS, name)
        check_count(request, user, transaction.list(key.resource), self._policy.max_per_user, self._creation.clock())
        values = values_of(name, request.display_name, request.description, user)
        project = self._create(template.project, template.expand(template.project, values), name, transaction, write)
        project = with_metadata(project, annotations={**project.metadata.annotations, REQUESTER_ANNOTATION: user})
        transaction.put(key.resource, PROJECTS.to_stored(project))
        for each in template.objects:
            obj = self._create(each, template.expand(each, values), name, transaction, write)
            if obj is not None:
                transaction.put(each.resource.stored_group_resource, each.resource.to_stored(obj))
        changes = transaction.changes
        position = [change.key for change in changes].index(key)

        def respond(stored: tuple[Any, ...]) -> Response:
            return Response(201, msgspec.json.encode(PROJECTS.from_stored(stored[position]) if stored else project))

        return WriteDecision(respond, changes, is_dry_run)

    def _create(
        self,
        template_object: TemplateObject,
        document: dict[str, Any],
        project: str,
        transaction: Transaction,
        write: PendingWrite,
    ) -> Any:
        """Return an object of the template as it is to be stored; None if the project has it already."""
        resource = template_object.resource
        obj = decode(template_object, document, project)
        check_size(obj)
        key = Key(resource.stored_group_resource, obj.metadata.namespace, obj.metadata.name)
        if transaction.get(key) is not None:
            return None
        return self._creation.create(resource, obj, transaction, write=write)
