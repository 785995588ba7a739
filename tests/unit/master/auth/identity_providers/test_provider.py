"""Names of identities, and what providers may report."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.auth.identity_providers.allow_deny_all import AllowAllProvider, DenyAllProvider
from master.auth.identity_providers.provider import (
    ProviderError,
    ProviderIdentity,
    escape_provider_user_name,
    reported_identity,
    unescape_provider_user_name,
)

NAMES = st.text(st.one_of(st.sampled_from(":/b64?~ÿ"), st.characters()))


@given(NAMES)
def test_escaped_names_round_trip(name: str) -> None:
    escaped = escape_provider_user_name(name)
    assert unescape_provider_user_name(escaped) == name
    assert "/" not in escaped
    assert ":" not in escaped.removeprefix("b64:")
    assert escaped.startswith("b64:") == (":" in name or "/" in name)


@given(NAMES, NAMES)
def test_different_names_have_different_escaped_names(name: str, other: str) -> None:
    assert (escape_provider_user_name(name) == escape_provider_user_name(other)) == (name == other)


@pytest.mark.parametrize(
    ("name", "escaped"),
    [
        ("alice", "alice"),
        ("a/b", "b64:YS9i"),
        ("system:admin", "b64:c3lzdGVtOmFkbWlu"),
        ("b64:YS9i", "b64:YjY0OllTOWk"),
        ("a:?", "b64:YTo_"),
    ],
)
def test_names_are_escaped_as_openshift_does(name: str, escaped: str) -> None:
    assert escape_provider_user_name(name) == escaped


@pytest.mark.parametrize("user_id", ["", "x" * 1025, "a\nb", "a\0b", "\udcff", "\u202egpj.exe"])
def test_unusable_ids_are_errors(user_id: str) -> None:
    with pytest.raises(ProviderError, match="user id"):
        reported_identity("p", user_id)


def test_other_texts_are_cut_and_groups_limited() -> None:
    found = reported_identity("p", "1", name="x" * 2000, email="a\r\nb", preferred_username="Zoë Ünal", groups=("g",))
    assert found == ProviderIdentity("p", "1", "x" * 1024, "", "Zoë Ünal", ("g",))
    for groups in (tuple(map(str, range(1001))), ("\0",), ("x" * 1025,)):
        with pytest.raises(ProviderError, match="groups"):
            reported_identity("p", "1", groups=groups)


async def test_allow_all_accepts_every_password_that_is_not_blank() -> None:
    provider = AllowAllProvider("lab")
    assert await provider.authenticate_password(" alice ", "x") == ProviderIdentity("lab", "alice")
    for name, password in (
        ("", "x"),
        ("  ", "x"),
        ("alice", ""),
        ("alice", "  "),
        ("alice", "x" * 1025),
        ("a\nb", "x"),
    ):
        assert await provider.authenticate_password(name, password) is None


async def test_deny_all_accepts_nobody() -> None:
    assert await DenyAllProvider("none").authenticate_password("alice", "x") is None
