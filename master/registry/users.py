"""The current user, and the mappings of identities to users. Raises `StatusError`.

Source: the API server of OpenShift. A mapping is what two objects say of each other: the Identity names the User by
name and uid, and the User lists the Identity.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from api.meta.schema import FieldError, quoted
from api.meta.types import ObjectMeta
from master import errors
from master.auth import attributes
from master.registry import decoding, patch
from master.registry.guaranteed_update import WriteDecision, guaranteed_update
from master.registry.request import Request, Response, dry_run, field_validation
from master.resources.metadata import Clock
from master.resources.scheme import group_resource
from master.resources.users import (
    USER_IDENTITY_MAPPINGS,
    USERS,
    Identity,
    IdentityReference,
    User,
    UserIdentityMapping,
    UserReference,
)
from master.serialization import negotiation, tables
from master.serialization.json_patch import InvalidPatch, json_patch
from master.storage.interface import Key, Storage, Transaction


def user_key(name: str) -> Key:
    """Return the key of a User."""
    return Key(group_resource(User), "", name)


def identity_key(name: str) -> Key:
    """Return the key of an Identity."""
    return Key(group_resource(Identity), "", name)


def mapped_user(identity: Identity, user: User | None) -> User | None:
    """Return the user of an identity, if both name each other; else None."""
    if user is None or user.metadata.uid != identity.user.uid:
        return None
    return user if identity.metadata.name in user.identities else None


def mapping_of(identity: Identity, user: User) -> UserIdentityMapping:
    """Return the mapping of an identity to its user. Its metadata is that of the identity."""
    meta = identity.metadata
    return UserIdentityMapping(
        api_version=UserIdentityMapping.API_VERSION,
        kind=UserIdentityMapping.KIND,
        metadata=ObjectMeta(
            name=meta.name,
            uid=meta.uid,
            resource_version=meta.resource_version,
            creation_timestamp=meta.creation_timestamp,
        ),
        identity=IdentityReference(name=meta.name, uid=meta.uid),
        user=UserReference(name=user.metadata.name, uid=user.metadata.uid),
    )


def map_identity(identity: Identity, user: User, objects: Transaction) -> Identity:
    """Add the writes that map an identity to a user, and return the identity.

    The user gets the identity, the identity names the user, and an earlier user loses the identity.
    """
    name = identity.metadata.name
    if name not in user.identities:
        objects.put(group_resource(User), replace(user, identities=(*user.identities, name)))
    if identity.user.name and identity.user.name != user.metadata.name:
        _remove_identity(name, objects.get(user_key(identity.user.name)), objects)
    mapped = replace(identity, user=UserReference(name=user.metadata.name, uid=user.metadata.uid))
    objects.put(group_resource(Identity), mapped)
    return mapped


def _remove_identity(name: str, user: User | None, objects: Transaction) -> None:
    if user is not None and name in user.identities:
        remaining = tuple(identity for identity in user.identities if identity != name)
        objects.put(group_resource(User), replace(user, identities=remaining))


class Users:
    """Serves the user `~` and UserIdentityMappings."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self._store = storage
        self._clock = clock

    def current(self, request: Request) -> Response:
        """Return the user who sends the request, with all groups. The User object need not exist."""
        requester = request.user
        if attributes.AUTHENTICATED not in requester.groups:
            raise errors.forbidden(USERS, "~", "requests to ~ must be authenticated")
        record = self._store.get(user_key(requester.name))
        stored = User(metadata=ObjectMeta(name=requester.name)) if record is None else record.object
        if requester.uid and stored.metadata.uid not in ("", requester.uid):
            stored = User(metadata=ObjectMeta(name=requester.name))
        uid = stored.metadata.uid or requester.uid
        user = replace(
            stored,
            api_version=User.API_VERSION,
            kind=User.KIND,
            metadata=replace(stored.metadata, uid=uid),
            groups=tuple(sorted(requester.groups)),
        )
        view = negotiation.negotiate(request.accept)
        return Response(200, tables.encode_object(USERS, user, view, self._clock()))

    async def answer_mapping(self, verb: str, request: Request) -> Response:
        """Return the response to a request for UserIdentityMappings."""
        if request.info.subresource:
            raise errors.path_not_found()
        if verb not in USER_IDENTITY_MAPPINGS.verbs or bool(request.info.name) == (verb == "create"):
            raise errors.method_not_allowed()
        if verb == "get":
            identity, user = self._mapping(request, Transaction(self._store))
            return self._respond(200, request, mapping_of(identity, user))
        decide = {
            "create": lambda: self._decide_write(request, request.body, is_create=True),
            "update": lambda: self._decide_write(request, request.body, is_create=False),
            "patch": lambda: self._decide_patch(request),
            "delete": lambda: self._decide_delete(request),
        }[verb]
        return await guaranteed_update(self._store, USER_IDENTITY_MAPPINGS, request.info.name, decide)

    def _mapping(self, request: Request, objects: Transaction) -> tuple[Identity, User]:
        """Return identity and user of the requested mapping. Raises NotFound."""
        identity: Identity | None = objects.get(identity_key(request.info.name))
        if identity is not None:
            user = mapped_user(identity, objects.get(user_key(identity.user.name)))
            if user is not None:
                return identity, user
        raise errors.not_found(USER_IDENTITY_MAPPINGS, request.info.name)

    def _decide_patch(self, request: Request) -> WriteDecision[Response]:
        if request.content_type not in (negotiation.MERGE_PATCH, negotiation.STRATEGIC_PATCH, negotiation.JSON_PATCH):
            raise errors.unsupported_patch()
        before = msgspec.to_builtins(mapping_of(*self._mapping(request, Transaction(self._store))))
        try:
            if request.content_type == negotiation.JSON_PATCH:
                document = json_patch(before, request.body)
            else:
                document = patch.merge_patch(before, request.body)
        except InvalidPatch as error:
            raise errors.invalid_patch(str(error)) from error
        return self._decide_write(request, document, is_create=False)

    def _decide_write(self, request: Request, document: Any, *, is_create: bool) -> WriteDecision[Response]:
        """Map the identity of a document to its user. An update of an identity without a user creates the mapping."""
        info, objects = request.info, Transaction(self._store)
        mapping: UserIdentityMapping = decoding.decode_object(
            info, _with_name(document), field_validation(request.query)
        ).object
        problems = []
        identity: Identity | None = objects.get(identity_key(mapping.identity.name))
        if identity is None or mapping.identity.uid not in ("", identity.metadata.uid):
            name = quoted(mapping.identity.name)
            problems.append(FieldError("identity.name", name, "referenced identity does not exist"))
        user: User | None = objects.get(user_key(mapping.user.name))
        if user is None or mapping.user.uid not in ("", user.metadata.uid):
            problems.append(FieldError("user.name", quoted(mapping.user.name), "referenced user does not exist"))
        if mapping.identity.name != mapping.metadata.name:
            name = quoted(mapping.identity.name)
            problems.append(FieldError("identity.name", name, f"must be {mapping.metadata.name}"))
        if problems or identity is None or user is None:
            raise errors.invalid(USER_IDENTITY_MAPPINGS, mapping.metadata.name, problems)
        if mapping.metadata.resource_version not in ("", identity.metadata.resource_version):
            raise errors.conflict(USER_IDENTITY_MAPPINGS, mapping.metadata.name)
        current = mapped_user(identity, objects.get(user_key(identity.user.name)))
        if is_create and current is not None:
            raise errors.already_exists(USER_IDENTITY_MAPPINGS, mapping.metadata.name)
        mapped = identity
        if current is None or current.metadata.uid != user.metadata.uid:
            mapped = map_identity(identity, user, objects)
        code = 201 if current is None else 200

        def respond(stored: tuple[Any, ...]) -> Response:
            written = next((each for each in stored if isinstance(each, Identity)), mapped)
            return self._respond(code, request, mapping_of(written, user))

        return WriteDecision(respond, objects.changes, dry_run(request.query))

    def _decide_delete(self, request: Request) -> WriteDecision[Response]:
        """Separate an identity from its user. Both objects stay."""
        objects = Transaction(self._store)
        identity, user = self._mapping(request, objects)
        _remove_identity(identity.metadata.name, user, objects)
        objects.put(group_resource(Identity), replace(identity, user=UserReference()))
        details = errors.details_of(USER_IDENTITY_MAPPINGS, identity.metadata.name, identity.metadata.uid)
        body = errors.encode_status(errors.success(details))
        return WriteDecision(lambda _: Response(200, body), objects.changes, dry_run(request.query))

    def _respond(self, code: int, request: Request, mapping: UserIdentityMapping) -> Response:
        view = negotiation.negotiate(request.accept)
        return Response(code, tables.encode_object(USER_IDENTITY_MAPPINGS, mapping, view, self._clock()))


def _with_name(document: Any) -> Any:
    """Return the document of a mapping with the name of its identity."""
    if not isinstance(document, dict) or not isinstance(document.get("identity"), dict):
        return document
    metadata = document.get("metadata") or {}
    if not isinstance(metadata, dict):
        return document
    return {**document, "metadata": {**metadata, "name": metadata.get("name") or document["identity"].get("name")}}
