"""ProjectRequest: creates a project whose requester is its administrator. It is not stored.

Source: project.openshift.io of OpenShift. Raises `StatusError`.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable
from typing import Any

import msgspec

from api.meta.schema import without_nulls
from api.meta.types import ObjectMeta, StatusDetails
from api.validation.registry import default
from master.admission.chain import AdmissionChain
from master.auth.attributes import User
from master.kinds import BY_NAME, rbac
from master.kinds.project import DESCRIPTION, DISPLAY_NAME, GROUP, PROJECT, REQUESTER, REQUESTS, ProjectRequest
from master.registry import decoding, strategy
from master.store.draft import Draft
from master.store.records import Key, Put
from master.store.store import Store
from master.wire import answers
from master.wire.ask import Answer
from master.wire.request import Target

PROJECT_REQUESTS_PATH = f"/apis/{GROUP}/v1/{REQUESTS}"

RESERVED_PREFIXES = ("openshift-", "kube-", "kubernetes-")
"""Beginnings of names that are the cluster's own."""


def not_allowed() -> answers.Failure:
    """Who may not ask for projects is told so in these words."""
    details = StatusDetails(group=GROUP, kind=REQUESTS)
    return answers.failure(403, "Forbidden", "You may not request a new project via this API.", details)


def decode_project_request(document: object) -> ProjectRequest:
    """The request in a body."""
    if not isinstance(document, dict):
        raise answers.bad_request("the body is not a ProjectRequest: a JSON object is accepted")
    try:
        wish = msgspec.convert(without_nulls(document), ProjectRequest)
    except msgspec.ValidationError as error:
        raise answers.bad_request(f"the body is not a ProjectRequest: {error}") from error
    for prefix in RESERVED_PREFIXES:
        if wish.metadata.name.startswith(prefix):
            why = f'cannot request a project starting with "{prefix}"'
            raise answers.forbidden(PROJECT, wish.metadata.name, why)
    return wish


def requested_project(wish: ProjectRequest, requester: str) -> dict[str, Any]:
    """The project as its requester would have to write it."""
    given = {DISPLAY_NAME: wish.display_name, DESCRIPTION: wish.description, REQUESTER: requester}
    meta = {"name": wish.metadata.name, "annotations": {**wish.metadata.annotations, **given}}
    return {"metadata": {**meta, "labels": wish.metadata.labels}}


def admin_binding(project: str, user: str) -> rbac.RoleBinding:
    """What makes somebody the administrator of a project."""
    return rbac.RoleBinding(
        metadata=ObjectMeta(name="admin", namespace=project),
        subjects=(rbac.Subject(kind="User", api_group=rbac.GROUP, name=user),),
        role_ref=rbac.RoleRef(api_group=rbac.GROUP, kind=rbac.ClusterRole.KIND, name="admin"),
    )


class ProjectRequests:
    """Answers POST."""

    def __init__(self, store: Store, chain: AdmissionChain, clock: Callable[[], datetime.datetime]) -> None:
        self._store = store
        self._chain = chain
        self._clock = clock

    async def create(self, user: User, document: object, *, dry: bool) -> Answer:
        """The project, and its requester as its administrator, in one write."""
        wish = decode_project_request(document)
        body = decoding.decode_object(Target(PROJECT), requested_project(wish, user.name), "Ignore")
        name = body.item.metadata.name
        if self._store.latest(Key(PROJECT.stored, "", name)) is not None:
            raise answers.already_exists(PROJECT, name)
        draft = Draft(self._store)
        item = self._chain.created(PROJECT, body.item, draft)
        kind = BY_NAME[rbac.RoleBinding.KIND]
        binding = default(admin_binding(name, user.name), kind.rules)
        binding = strategy.prepare_create(kind, binding, str(uuid.uuid4()), self._clock())
        if not dry:
            # Watchers of projects are told of those they may see: so they may first.
            _, kept, *_ = await self._store.write(Put(binding), Put(PROJECT.kept(item), expect=0), *draft.puts)
            item = PROJECT.seen(kept)
        return Answer(201, msgspec.json.encode(item))
