"""Requests and renewal of service account tokens."""

from __future__ import annotations

from datetime import timedelta

import pytest

from api.core.auth import TokenRequestStatus
from api.core.volumes import ServiceAccountTokenProjection
from api.meta import times
from node_agent.volumes.tokens import token_lifetime
from reconcile.errors import NotReady
from tests.unit.node_agent.examples import NOW, UID, make_pod
from tests.unit.node_agent.token_issuer import HOUR, TokenIssuer

PROJECTION = ServiceAccountTokenProjection(path="token", expiration_seconds=3607)


async def test_token_is_bound_to_its_pod_and_requested_once() -> None:
    issuer = TokenIssuer()
    async with issuer.tokens() as tokens:
        assert [await tokens.get(make_pod(), PROJECTION) for _ in range(2)] == ["token-1", "token-1"]
        assert issuer.requests == [
            (
                "default",
                {
                    "kind": "TokenRequest",
                    "apiVersion": "authentication.k8s.io/v1",
                    "spec": {
                        "expirationSeconds": 3607,
                        "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "web", "uid": UID},
                    },
                },
            )
        ]
        other = ServiceAccountTokenProjection(path="token", audience="vault")
        assert await tokens.get(make_pod(spec="  serviceAccountName: robot"), other) == "token-2"
        assert issuer.requests[1][0] == "robot"
        assert issuer.requests[1][1]["spec"]["audiences"] == ["vault"]
        assert issuer.requests[1][1]["spec"]["expirationSeconds"] == 3600
        tokens.forget(UID)
        assert await tokens.get(make_pod(), PROJECTION) == "token-3"


async def test_token_is_renewed_and_the_old_one_used_while_valid() -> None:
    issuer = TokenIssuer()
    async with issuer.tokens() as tokens:
        assert await tokens.get(make_pod(), PROJECTION) == "token-1"
        issuer.now += 0.7 * HOUR
        assert await tokens.get(make_pod(), PROJECTION) == "token-1"
        issuer.now += 0.2 * HOUR
        issuer.refuses = True
        assert await tokens.get(make_pod(), PROJECTION) == "token-1"
        issuer.refuses = False
        assert await tokens.get(make_pod(), PROJECTION) == "token-2"
        issuer.refuses = True
        issuer.now += 2 * HOUR
        with pytest.raises(NotReady, match='token of serviceaccount "default": not for you'):
            await tokens.get(make_pod(), PROJECTION)


async def test_clock_set_back_does_not_prolong_a_token() -> None:
    issuer = TokenIssuer()
    async with issuer.tokens() as tokens:
        assert await tokens.get(make_pod(), PROJECTION) == "token-1"
        issuer.now -= 5 * HOUR
        assert await tokens.get(make_pod(), PROJECTION) == "token-1"
        issuer.now += 0.9 * HOUR
        issuer.steady_now += 0.9 * HOUR
        assert await tokens.get(make_pod(), PROJECTION) == "token-2"
        issuer.now += 5 * HOUR
        assert await tokens.get(make_pod(), PROJECTION) == "token-3"


@pytest.mark.parametrize(
    ("seconds", "renewed"),
    [(3600, timedelta(seconds=2880)), (600, timedelta(seconds=480)), (900_000, timedelta(days=1))],
)
def test_token_is_renewed_at_four_fifths_of_its_lifetime(seconds: int, renewed: timedelta) -> None:
    expires = NOW + timedelta(seconds=seconds)
    answer = TokenRequestStatus(token="t", expiration_timestamp=times.format_time(expires))
    assert token_lifetime(answer, NOW) == (expires, NOW + renewed)
