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

RENEW_FRACTION = 0.8
"""Fraction of a token's lifetime after which the token is renewed."""

MAX_TOKEN_AGE = timedelta(hours=24)
"""Age at which a token is renewed, however long its lifetime is."""

DEFAULT_ACCOUNT = "default"


class _Token(NamedTuple):
    text: str
    expires_at: datetime
    renew_at: datetime
    renew_at_steady: datetime


class TokenCache:
    """The service account tokens of all pods of this node (kubelet: token manager)."""

    def __init__(
        self, client: Client, clock: Callable[[], datetime] = wall_clock, steady: Callable[[], datetime] = steady_clock
    ) -> None:
        self._client = client
        self._clock = clock
        self._steady_clock = steady
        self._tokens: dict[tuple[str, str, str, int], _Token] = {}
        """By pod UID, service account, audience and requested lifetime."""

    async def get(self, pod: Pod, projection: ServiceAccountTokenProjection) -> str:
        """Return a token that is not due for renewal. Raises NotReady if there is none.

        If a token cannot be renewed, it is returned until it expires.
        """
        account = pod.spec.service_account_name or DEFAULT_ACCOUNT
        seconds = projection.expiration_seconds or DEFAULT_TOKEN_SECONDS
        key = (pod.metadata.uid, account, projection.audience, seconds)
        token = self._tokens.get(key)
        now = self._clock()
        steady_now = self._steady_clock()
        # This host's clock may be set while the API server's goes on. The token has to be valid by both clocks.
        if token is not None and now < token.renew_at and steady_now < token.renew_at_steady:
            return token.text
        request = _token_request(pod, projection, seconds)
        try:
            status = await self._client.request_token(pod.metadata.namespace, account, request)
        except ClientError as error:
            if token is not None and now < token.expires_at:
                log.warning("token could not be renewed", extra={"pod": pod.metadata.name, "error": error})
                return token.text
            raise NotReady(f'token of serviceaccount "{account}": {error}') from None
        expires_at, renew_at = token_lifetime(status, now)
        self._tokens[key] = _Token(status.token, expires_at, renew_at, steady_now + (renew_at - now))
        return status.token

    def forget(self, uid: str) -> None:
        """Remove the tokens of a pod."""
        self._tokens = {key: token for key, token in self._tokens.items() if key[0] != uid}


def token_lifetime(status: TokenRequestStatus, now: datetime) -> tuple[datetime, datetime]:
    """Return when a new token expires, and when it is renewed: at 80 % of its lifetime, but after at most a day."""
    expires_at = times.parse_time(status.expiration_timestamp)
    return expires_at, now + min((expires_at - now) * RENEW_FRACTION, MAX_TOKEN_AGE)


def _token_request(pod: Pod, projection: ServiceAccountTokenProjection, seconds: int) -> TokenRequest:
    pod_reference = BoundObjectReference(kind="Pod", api_version="v1", name=pod.metadata.name, uid=pod.metadata.uid)
    audiences = (projection.audience,) if projection.audience else ()
    spec = TokenRequestSpec(audiences=audiences, expiration_seconds=seconds, bound_object_ref=pod_reference)
    return TokenRequest(api_version=TokenRequest.API_VERSION, kind=TokenRequest.KIND, spec=spec)
