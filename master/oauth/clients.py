"""The clients of the OAuth server: OAuthClient objects, service accounts, and the three that always exist.

A service account is the client `system:serviceaccount:NAMESPACE:NAME`. Its annotations name its redirect URIs, and a
token of it is its secret. Its scopes are limited: what it may ask of a user is about the user, or in its own namespace.
Source: the OAuth server of OpenShift.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Iterator, Mapping

from msgspec.structs import replace

from api.meta.types import ObjectMeta
from master.oauth.authorize import Client
from master.oauth.paths import DISPLAY_PATH, IMPLICIT_PATH
from master.resources.configuration import ServiceAccount
from master.resources.oauth import (
    GRANT_AUTO,
    SERVICE_ACCOUNT_CLIENT_PREFIX,
    USER_CHECK_ACCESS,
    USER_INFO,
    USER_LIST_PROJECTS,
    USER_LIST_SCOPED_PROJECTS,
    ClusterRoleScopeRestriction,
    OAuthClient,
    ScopeRestriction,
    redirect_uri_error,
)
from master.resources.scheme import group_resource
from master.storage.interface import Key, Storage

BROWSER_CLIENT, CHALLENGING_CLIENT, CLI_CLIENT = (
    "openshift-browser-client",
    "openshift-challenging-client",
    "openshift-cli-client",
)

REDIRECT_URI_ANNOTATION = "serviceaccounts.openshift.io/oauth-redirecturi."
WANT_CHALLENGES_ANNOTATION = "serviceaccounts.openshift.io/oauth-want-challenges"
"""Annotations of a service account: a redirect URI with any suffix, and whether the client gets challenges."""

MAX_REDIRECT_URIS = 20


def bootstrap_clients(
    url: str, existing: Mapping[str, OAuthClient], new_secret: Callable[[], str]
) -> Iterator[tuple[OAuthClient, OAuthClient | None]]:
    """Yield (desired, existing) of each default client that is missing or has another form. `url` is the server's.

    The browser client keeps its secret if that is long enough, and additional secrets stay.
    """
    for name, redirect_uris, challenges, is_public in (
        (BROWSER_CLIENT, (f"{url}{DISPLAY_PATH}",), False, False),
        (CHALLENGING_CLIENT, (f"{url}{IMPLICIT_PATH}",), True, True),
        (CLI_CLIENT, ("http://127.0.0.1/callback", "http://[::1]/callback"), False, True),
    ):
        old = existing.get(name)
        base = OAuthClient(metadata=ObjectMeta(name=name)) if old is None else old
        secret = base.secret if len(base.secret) >= SECRET_LENGTH else new_secret()
        desired = replace(
            base,
            secret="" if is_public else secret,
            redirect_uris=redirect_uris,
            respond_with_challenges=challenges,
            grant_method=GRANT_AUTO,
        )
        if desired != old:
            yield desired, old


SECRET_BYTES, SECRET_LENGTH = 32, 43
"""Random bytes of a secret, and their characters in base64."""


class ClientRegistry:
    """Finds clients by their names. The grant method is that of service accounts."""

    def __init__(self, storage: Storage, service_account_grant_method: str) -> None:
        self._store = storage
        self._service_account_grant_method = service_account_grant_method

    def find(self, name: str) -> Client | None:
        """Return a client; None if there is none of this name."""
        if name.startswith(SERVICE_ACCOUNT_CLIENT_PREFIX):
            namespace, _, account_name = name.removeprefix(SERVICE_ACCOUNT_CLIENT_PREFIX).partition(":")
            record = self._store.get(Key(group_resource(ServiceAccount), namespace, account_name))
            if record is None:
                return None
            return service_account_client(record.object, self._service_account_grant_method)
        record = self._store.get(Key(group_resource(OAuthClient), "", name))
        return None if record is None else client_of(record.object)


def client_of(client: OAuthClient) -> Client:
    """Return the client that an OAuthClient describes."""
    return Client(
        name=client.metadata.name,
        uid=client.metadata.uid,
        secrets=tuple(secret for secret in (client.secret, *client.additional_secrets) if secret),
        redirect_uris=client.redirect_uris,
        responds_with_challenges=client.respond_with_challenges,
        grant_method=client.grant_method,
        scope_restrictions=client.scope_restrictions,
        max_age_seconds=client.access_token_max_age_seconds,
        inactivity_seconds=client.access_token_inactivity_timeout_seconds,
    )


def service_account_client(account: ServiceAccount, grant_method: str) -> Client:
    """Return the client that a service account is. Its secrets are its tokens, which are checked elsewhere."""
    meta = account.metadata
    own_roles = ClusterRoleScopeRestriction(role_names=("*",), namespaces=(meta.namespace,), allow_escalation=True)
    return Client(
        name=f"{SERVICE_ACCOUNT_CLIENT_PREFIX}{meta.namespace}:{meta.name}",
        uid=meta.uid,
        redirect_uris=tuple(_annotated_redirect_uris(meta.annotations))[:MAX_REDIRECT_URIS],
        responds_with_challenges=meta.annotations.get(WANT_CHALLENGES_ANNOTATION) == "true",
        grant_method=grant_method,
        scope_restrictions=(
            ScopeRestriction(literals=(USER_INFO, USER_CHECK_ACCESS, USER_LIST_SCOPED_PROJECTS, USER_LIST_PROJECTS)),
            ScopeRestriction(cluster_role=own_roles),
        ),
    )


def _annotated_redirect_uris(annotations: Mapping[str, str]) -> Iterator[str]:
    """Yield the redirect URIs in the annotations, sorted by suffix. Those of other schemes are left out."""
    for key in sorted(annotations):
        uri = annotations[key]
        if key.startswith(REDIRECT_URI_ANNOTATION) and not redirect_uri_error(uri):
            parts = urllib.parse.urlsplit(uri)
            if parts.scheme in ("http", "https") and parts.netloc:
                yield uri
