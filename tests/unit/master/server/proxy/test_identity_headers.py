"""Headers that tell an aggregated API server who sends a request."""

from __future__ import annotations

import pytest

from master.auth.attributes import User
from master.errors import StatusError
from master.server.proxy.identity_headers import identity_headers, without_identity


def test_user_is_named_with_groups_and_extra_attributes() -> None:
    extra = (("scopes.authorization.openshift.io", ("user:info", "user:full")), ("Key/%ä", ("v",)))
    assert identity_headers(User("ann", frozenset(("b", "a")), "u1", extra)) == [
        ("X-Remote-User", "ann"),
        ("X-Remote-Uid", "u1"),
        ("X-Remote-Group", "a"),
        ("X-Remote-Group", "b"),
        ("X-Remote-Extra-scopes.authorization.openshift.io", "user:info"),
        ("X-Remote-Extra-scopes.authorization.openshift.io", "user:full"),
        ("X-Remote-Extra-Key%2F%25%C3%A4", "v"),
    ]
    assert identity_headers(User("ann", frozenset())) == [("X-Remote-User", "ann")]


@pytest.mark.parametrize(
    "name", [" admin", "admin ", "admin\r\nX-Remote-Group: system:masters", "a\0b", "a\x7f", "\u00a0x"]
)
def test_name_that_would_arrive_as_another_one_is_refused(name: str) -> None:
    for user in (User(name), User("a", frozenset((name,))), User("a", extra=(("k", (name,)),)), User("a", uid=name)):
        with pytest.raises(StatusError, match="invalid header field value"):
            identity_headers(user)


def test_headers_of_a_client_that_name_a_user_are_removed() -> None:
    sent = [("x-remote-user", "a"), ("X_Remote_Group", "a"), ("X-REMOTE-EXTRA-b", "a"), ("X-Remote", "kept")]
    assert list(without_identity(sent)) == [("X-Remote", "kept")]
