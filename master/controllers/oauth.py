"""The clients of the OAuth server that always exist, and the deletion of expired tokens. Pure, but for new secrets."""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Iterable, Iterator

from master.controllers.actions import Action, Create, Failed, ForceDelete, Update, isolate_errors
from master.controllers.context import Lister
from master.oauth.clients import SECRET_BYTES, bootstrap_clients
from master.resources.oauth import OAuthAccessToken, OAuthAuthorizeToken, OAuthClient, is_expired


def sync_oauth_clients(lister: Lister) -> Iterator[Action]:
    """Create the default clients and keep their form."""
    url = lister.context.public_url()
    if not url:
        return
    existing = {client.metadata.name: client for client in lister.list(OAuthClient)}
    for desired, old in bootstrap_clients(url, existing, lambda: secrets.token_urlsafe(SECRET_BYTES)):
        yield Create(desired) if old is None else Update(desired, old)


def expired_tokens(
    tokens: Iterable[OAuthAccessToken | OAuthAuthorizeToken], now: datetime.datetime
) -> Iterator[ForceDelete | Failed]:
    """Yield the deletion of expired tokens."""

    def expire(token: OAuthAccessToken | OAuthAuthorizeToken) -> Iterator[ForceDelete]:
        if is_expired(token, now):
            yield ForceDelete(token)

    return isolate_errors(tokens, expire)
