"""Secrets of the type kubernetes.io/service-account-token: each holds a token of the account that it names. Pure.

The token is valid as long as the Secret. A Secret whose account does not exist, or has another uid, is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from msgspec.structs import replace

from api.core.config import ACCOUNT_NAME, ACCOUNT_TOKEN, ACCOUNT_UID, Secret
from master.auth import service_account_tokens
from master.controllers.actions import Action, ForceDelete, Update
from master.controllers.context import Lister
from master.resources.configuration import ServiceAccount

TOKEN_KEY, CA_KEY, NAMESPACE_KEY = "token", "ca.crt", "namespace"


def reconcile(
    secrets: Iterable[Secret],
    accounts: Iterable[ServiceAccount],
    authority: str,
    signed: Callable[[ServiceAccount, Secret], str],
) -> Iterator[Update | ForceDelete]:
    """What is missing in them; `signed` makes a token."""
    wanted = [item for item in secrets if item.type == ACCOUNT_TOKEN and not item.metadata.deletion_timestamp]
    if not wanted:
        return
    known = {(item.metadata.namespace, item.metadata.name): item for item in accounts}
    for item in wanted:
        meta = item.metadata
        account = known.get((meta.namespace, meta.annotations[ACCOUNT_NAME]))
        if account is None or meta.annotations.get(ACCOUNT_UID) not in (None, account.metadata.uid):
            yield ForceDelete(item)
            continue
        token = item.data.get(TOKEN_KEY) or signed(account, item).encode()
        given = {CA_KEY: authority.encode(), NAMESPACE_KEY: meta.namespace.encode(), TOKEN_KEY: token}
        annotations = {**meta.annotations, ACCOUNT_UID: account.metadata.uid}
        new = replace(item, data={**item.data, **given}, metadata=replace(meta, annotations=annotations))
        if new != item:
            yield Update(new, item)


def sync_token_secrets(lister: Lister) -> Iterable[Action]:
    """Fill in and delete the token Secrets of service accounts."""

    def signed(account: ServiceAccount, secret: Secret) -> str:
        return lister.context.sign_token(service_account_tokens.secret_token_claims(account, secret, lister.now))

    found = lister.list("Secret"), lister.list("ServiceAccount")
    return reconcile(*found, lister.context.ca_certificate, signed)
