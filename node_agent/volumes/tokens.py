"""Service account tokens for projected volumes; renewal."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import NamedTuple

from api.client.client import Client, ClientError
from api.core.auth import BoundObjectReference, TokenRequest, TokenRequestSpec, TokenRequestStatus
from api.core.pod import Pod
from api.core.volumes import DEFAULT_TOKEN_SECONDS, ServiceAccountTokenProjection
from api.meta import times
from node_agent.clock import steady_clock, wall_clock
from reconcile.errors import NotReady

log = logging.getLogger(__name__)

PART_OF_LIFE = 0.8
LONGEST_USE = timedelta(hours=24)
DEFAULT_ACCOUNT = "default"


class _Token(NamedTuple):
    text: str
    expires: datetime
    renew: datetime
    renew_evenly: datetime


class TokenCache:
    """Of all pods of this node."""

    def __init__(
        self, client: Client, clock: Callable[[], datetime] = wall_clock, even: Callable[[], datetime] = steady_clock
    ) -> None:
        self._client = client
        self._clock = clock
        self._even = even
        self._held: dict[tuple[str, str, str, int], _Token] = {}

    async def get(self, pod: Pod, wish: ServiceAccountTokenProjection) -> str:
        """A token that is good for a while. Raises NotReady when there is none to be had."""
        account = pod.spec.service_account_name or DEFAULT_ACCOUNT
        seconds = wish.expiration_seconds or DEFAULT_TOKEN_SECONDS
        key = (pod.metadata.uid, account, wish.audience, seconds)
        held, now, even = self._held.get(key), self._clock(), self._even()
        # The master's clock may be ours, or go on evenly while ours is set: the token has to be good by both.
        if held is not None and now < held.renew and even < held.renew_evenly:
            return held.text
        try:
            answer = await self._client.request_token(pod.metadata.namespace, account, _request(pod, wish, seconds))
        except ClientError as error:
            if held is not None and now < held.expires:
                log.warning("token could not be renewed", extra={"pod": pod.metadata.name, "error": error})
                return held.text
            raise NotReady(f'token of serviceaccount "{account}": {error}') from None
        expires, renew = token_lifetime(answer, now)
        self._held[key] = _Token(answer.token, expires, renew, even + (renew - now))
        return answer.token

    def forget(self, uid: str) -> None:
        """The pod needs none any more."""
        self._held = {key: token for key, token in self._held.items() if key[0] != uid}


def token_lifetime(answer: TokenRequestStatus, now: datetime) -> tuple[datetime, datetime]:
    """When a token that was given now expires, and when it is to be renewed: at 80 % of its life, at most a day old."""
    expires = times.parse_time(answer.expiration_timestamp)
    return expires, now + min((expires - now) * PART_OF_LIFE, LONGEST_USE)


def _request(pod: Pod, wish: ServiceAccountTokenProjection, seconds: int) -> TokenRequest:
    bound = BoundObjectReference(kind="Pod", api_version="v1", name=pod.metadata.name, uid=pod.metadata.uid)
    audiences = (wish.audience,) if wish.audience else ()
    spec = TokenRequestSpec(audiences=audiences, expiration_seconds=seconds, bound_object_ref=bound)
    return TokenRequest(api_version=TokenRequest.API_VERSION, kind=TokenRequest.KIND, spec=spec)
