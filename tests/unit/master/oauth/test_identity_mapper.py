"""Which user a login becomes, by each mapping method, and the groups that a provider names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any, get_args

import pytest

from api.meta.types import ObjectMeta
from master.auth.identity_providers.allow_deny_all import AllowAllProvider
from master.auth.identity_providers.provider import IdentityProvider, MappingMethod, ProviderIdentity
from master.auth.oauth_tokens import GroupIndex
from master.oauth import identity_mapper
from master.oauth.identity_mapper import MappingError, map_login, sync_groups
from master.registry.users import user_key
from master.resources.scheme import STORED_TYPES, group_resource
from master.resources.users import Group, Identity, User, UserReference
from master.storage.interface import Delete, Key, Transaction
from master.storage.sqlite import SQLiteStorage
from tests.testbed.apiserver.changes import put
from tests.unit.master.controller_context import controller_context

METHODS: tuple[MappingMethod, ...] = get_args(MappingMethod)
CREATING: tuple[MappingMethod, ...] = ("claim", "generate", "add")


class Logins:
    """Logins at a master's storage."""

    def __init__(self, storage: SQLiteStorage) -> None:
        self.storage = storage
        self._creation = controller_context(storage).creation
        self._groups = GroupIndex(storage)

    async def have(self, *objects: User | Identity | Group) -> None:
        """Store objects."""
        await self.storage.write(*map(put, objects))

    async def log_in(
        self,
        method: MappingMethod,
        user_name: str,
        provider: str = "idp",
        groups: tuple[str, ...] | None = None,
        **account: str,
    ) -> str:
        """Return the name of the user that an account is mapped to. Raises MappingError and StatusError."""
        objects = Transaction(self.storage)
        identity = ProviderIdentity(provider, user_name, groups=groups, **account)

        def create(resource: Any, obj: Any) -> Any:
            return self._creation.create(resource, obj, objects)

        configured = IdentityProvider(provider, True, True, method, AllowAllProvider(provider))
        user = map_login(configured, identity, objects, create)
        deletions = sync_groups(identity, user.metadata.name, self._groups.of(user.metadata.name), objects, create)
        await self.storage.write(*objects.changes, *deletions)
        return user.metadata.name

    def user(self, name: str) -> User:
        """Return a stored user."""
        record = self.storage.get(user_key(name))
        assert record is not None
        user: User = record.object
        return user

    def names(self, kind: type[User] | type[Identity] | type[Group]) -> list[str]:
        """Return the names of the objects of a kind."""
        return [record.key.name for record in self.storage.list(group_resource(kind))]

    def groups_of(self, name: str) -> list[str]:
        """Return the names of the groups of a user."""
        records = self.storage.list(group_resource(Group))
        return [record.key.name for record in records if name in record.object.users]


@pytest.fixture
async def logins(tmp_path: Path) -> AsyncIterator[Logins]:
    storage = await SQLiteStorage.open(tmp_path / "store.db", STORED_TYPES)
    yield Logins(storage)
    await storage.close()


def user(name: str, *identities: str, full_name: str = "") -> User:
    return User(metadata=ObjectMeta(name=name, uid=f"uid-{name}"), identities=identities, full_name=full_name)


def group(name: str, users: Iterable[str] = (), **annotations: str) -> Group:
    return Group(metadata=ObjectMeta(name=name, uid=name, annotations=annotations), users=tuple(users))


async def refused(logins: Logins, method: MappingMethod, name: str, **options: Any) -> str:
    """Return the reason why a login is refused, and check that it stores nothing."""
    revision = logins.storage.revision
    with pytest.raises(MappingError) as raised:
        await logins.log_in(method, name, **options)
    assert logins.storage.revision == revision
    return raised.value.reason


# --- new identities ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", CREATING)
async def test_first_login_creates_user_and_identity(logins: Logins, method: MappingMethod) -> None:
    assert await logins.log_in(method, "alice", name="Alice A", email="a@x") == "alice"
    stored = logins.user("alice")
    assert (stored.full_name, stored.identities) == ("Alice A", ("idp:alice",))
    record = logins.storage.get(Key(group_resource(Identity), "", "idp:alice"))
    assert record is not None
    assert record.object.user == UserReference(name="alice", uid=stored.metadata.uid)
    assert record.object.extra == {"name": "Alice A", "email": "a@x"}
    revision = logins.storage.revision
    for again in METHODS:
        assert await logins.log_in(again, "alice") == "alice"
    assert logins.storage.revision == revision


@pytest.mark.parametrize("method", CREATING)
async def test_preferred_name_names_the_user(logins: Logins, method: MappingMethod) -> None:
    assert await logins.log_in(method, "12345", preferred_username="alice") == "alice"
    assert logins.names(Identity) == ["idp:12345"]


@pytest.mark.parametrize("method", CREATING)
async def test_name_with_a_colon_is_encoded(logins: Logins, method: MappingMethod) -> None:
    """So nobody becomes `system:admin`."""
    assert await logins.log_in(method, "system:admin") == "b64:c3lzdGVtOmFkbWlu"
    assert logins.names(Identity) == ["idp:b64:c3lzdGVtOmFkbWlu"]


@pytest.mark.parametrize("method", CREATING)
async def test_preferred_name_that_no_user_can_have_is_refused(logins: Logins, method: MappingMethod) -> None:
    for name in (
        *("system:admin", "system:masters", "kube:admin", "~", "a/b", "a%2fb", ".", "..", "system:serviceaccount:a:b"),
        *(" alice", "alice ", "alice\u200b", "alice\u202e", "alice\n", "\u00a0alice", "alice\0"),
    ):
        assert await refused(logins, method, "1", preferred_username=name) == "mapping_claim_error"
    assert await logins.log_in(method, "1", preferred_username="alice") == "alice"


@pytest.mark.parametrize(
    ("method", "expected"), [("claim", "alice"), ("generate", "alice"), ("add", "alice"), ("lookup", None)]
)
async def test_user_without_identities_is_taken(logins: Logins, method: MappingMethod, expected: str | None) -> None:
    """An administrator creates it for the first person with this name."""
    await logins.have(user("alice", full_name="Alice"))
    if expected is None:
        assert await refused(logins, method, "alice") == "mapping_lookup_error"
        return
    assert await logins.log_in(method, "alice", name="Other") == expected
    stored = logins.user("alice")
    assert (stored.full_name, stored.identities, stored.metadata.uid) == ("Alice", ("idp:alice",), "uid-alice")


@pytest.mark.parametrize(
    ("method", "expected"), [("claim", ""), ("generate", "alice2"), ("add", "alice"), ("lookup", "")]
)
async def test_user_with_another_identity(logins: Logins, method: MappingMethod, expected: str) -> None:
    await logins.log_in("claim", "alice", provider="first")
    if not expected:
        reason = "mapping_lookup_error" if method == "lookup" else "mapping_claim_error"
        assert await refused(logins, method, "alice") == reason
        return
    assert await logins.log_in(method, "alice") == expected
    assert ("idp:alice" in logins.user("alice").identities) == (method == "add")
    assert logins.names(User) == sorted({"alice", expected})


async def test_generate_tries_a_bounded_number_of_names(logins: Logins, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity_mapper, "MAX_GENERATED_NAMES", 3)
    await logins.have(*(user(name, "other:x") for name in ("alice", "alice2", "alice3")))
    assert await refused(logins, "generate", "alice") == "mapping_claim_error"


async def test_interrupted_mapping_is_completed(logins: Logins) -> None:
    """The user lists the identity already, which does not name the user."""
    await logins.have(user("alice", "idp:alice"))
    assert await logins.log_in("claim", "alice") == "alice"
    assert logins.user("alice").identities == ("idp:alice",)


# --- known identities -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("stored", [(), (user("alice"),), (user("alice", "other:alice"),)])
async def test_identity_whose_user_does_not_name_it_is_refused(
    logins: Logins, method: MappingMethod, stored: tuple[User, ...]
) -> None:
    metadata = ObjectMeta(name="idp:alice", uid="i")
    identity = Identity(
        metadata=metadata,
        provider_name="idp",
        provider_user_name="alice",
        user=UserReference(name="alice", uid="uid-alice"),
    )
    await logins.have(identity, *stored)
    assert await refused(logins, method, "alice") == "authentication_error"


async def test_user_who_was_created_again_is_not_the_old_one(logins: Logins) -> None:
    await logins.log_in("claim", "alice")
    old = logins.user("alice")
    await logins.storage.write(Delete(user_key("alice"), old))
    await logins.have(user("alice", "idp:alice"))
    assert await refused(logins, "claim", "alice") == "authentication_error"


# --- groups -----------------------------------------------------------------------------------------------------------


async def test_groups_of_a_provider_are_created_and_left(logins: Logins) -> None:
    await logins.log_in("claim", "alice", groups=("a", "b"))
    await logins.log_in("claim", "bob", groups=("b",))
    assert (logins.groups_of("alice"), logins.groups_of("bob")) == (["a", "b"], ["b"])
    record = logins.storage.get(Key(group_resource(Group), "", "a"))
    assert record is not None
    assert record.object.metadata.annotations == {
        "oauth.openshift.io/generated": "true",
        "oauth.openshift.io/idp.idp": "synced",
    }
    await logins.log_in("claim", "alice", groups=("b", "c"))
    assert (logins.groups_of("alice"), logins.groups_of("bob")) == (["b", "c"], ["b"])
    await logins.log_in("claim", "alice", groups=())
    assert logins.groups_of("alice") == []
    assert logins.groups_of("bob") == logins.names(Group) == ["b"]


async def test_groups_of_a_person_who_chooses_them_do_not_pile_up(logins: Logins) -> None:
    """Only groups that logins have created are deleted with their last member."""
    marks = {"oauth.openshift.io/idp.idp": "synced", "oauth.openshift.io/generated": "true"}
    metadata = ObjectMeta(name="held", uid="h", annotations=marks, finalizers=("example.com/x",))
    made = group("made", ["alice"], **{"oauth.openshift.io/idp.idp": "synced"})
    await logins.have(group("own", ["alice"]), made, Group(metadata=metadata, users=("alice",)))
    for number in range(5):
        await logins.log_in("claim", "alice", groups=tuple(f"g{number}-{each}" for each in range(3)))
    assert logins.names(Group) == ["g4-0", "g4-1", "g4-2", "held", "made", "own"]
    assert logins.groups_of("alice") == ["g4-0", "g4-1", "g4-2", "own"]


async def test_provider_without_groups_changes_none(logins: Logins) -> None:
    await logins.log_in("claim", "alice", groups=("a",))
    revision = logins.storage.revision
    await logins.log_in("claim", "alice", groups=None)
    await logins.log_in("claim", "alice", groups=("a",))
    assert logins.storage.revision == revision


async def test_groups_of_others_are_not_left(logins: Logins) -> None:
    other = {"oauth.openshift.io/idp.other": "synced"}
    await logins.have(group("own", ["alice"]), group("other", ["alice"], **other))
    await logins.log_in("claim", "alice", groups=())
    assert logins.groups_of("alice") == ["other", "own"]


async def test_group_of_an_administrator_is_joined_and_left(logins: Logins) -> None:
    """The provider marks it. Without the mark, a user whom the provider no longer names would stay a member."""
    await logins.have(group("team", ["carol"]))
    await logins.log_in("claim", "alice", groups=("team",))
    assert logins.groups_of("alice") == ["team"]
    await logins.log_in("claim", "alice", groups=())
    assert logins.groups_of("alice") == []
    assert logins.groups_of("carol") == ["team"]


async def test_names_of_virtual_groups_are_skipped(logins: Logins) -> None:
    """A login with them succeeds, and nobody becomes a member of them."""
    names = ("system:masters", "system:cluster-admins", "~", "/team", "a%b", "..", "", "team")
    await logins.log_in("claim", "alice", groups=names)
    assert logins.names(Group) == logins.groups_of("alice") == ["team"]


async def test_groups_are_bounded(logins: Logins, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity_mapper, "MAX_SYNCED_GROUPS", 3)
    monkeypatch.setattr(identity_mapper, "MAX_GROUP_USERS", 2)
    await logins.have(group("full", ["bob", "carol"]))
    await logins.log_in("claim", "alice", groups=("full", "g1", "g2", "g3", "g4"))
    assert logins.groups_of("alice") == ["g1", "g2"]


async def test_login_reads_only_its_own_groups(logins: Logins, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = {"oauth.openshift.io/idp.idp": "synced"}
    await logins.have(group("old", ["alice", "bob"], **marks), group("new", ["bob"]), group("others", ["bob"], **marks))
    keys: list[Key] = []
    get = Transaction.get

    def recorded(objects: Transaction, key: Key) -> Any:
        keys.append(key)
        return get(objects, key)

    monkeypatch.setattr(Transaction, "get", recorded)
    monkeypatch.setattr(Transaction, "list", lambda *_: pytest.fail("all groups were read"))
    await logins.log_in("claim", "alice", groups=("new",))
    assert {key.name for key in keys if key.resource == group_resource(Group)} == {"old", "new"}
    assert logins.groups_of("alice") == ["new"]
