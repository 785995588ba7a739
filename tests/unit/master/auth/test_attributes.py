"""Users, and for whom their connections are counted."""

from __future__ import annotations

import pytest

from master.auth.attributes import User, connection_owner


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("alice", "alice"),
        ("system:node:n1", "system:node:n1"),
        ("system:serviceaccount:red:default", "system:serviceaccount:red"),
        ("system:serviceaccount:red:builder", "system:serviceaccount:red"),
        ("system:serviceaccount:kube-system:proxy", "system:serviceaccount:kube-system@192.0.2.1"),
    ],
)
def test_connections_of_service_accounts_count_for_their_namespace(name: str, owner: str) -> None:
    assert connection_owner(User(name), "192.0.2.1") == owner
