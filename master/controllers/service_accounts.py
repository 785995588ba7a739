"""Secrets of the type kubernetes.io/service-account-token: each holds a token of the account that it names. Pure.

The token is valid as long as the Secret. A Secret whose account does not exist, or has another uid, is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from msgspec.structs import replace

from api.core.config import SERVICE_ACCOUNT_NAME, SERVICE_ACCOUNT_TOKEN, SERVICE_ACCOUNT_UID, Secret
from api.core.node import Namespace
from master.auth import service_account_tokens
from master.controllers.actions import Action, Create, Failed, ForceDelete, Update, isolate_errors
from master.controllers.context import Lister
from master.registry.creation import default_objects
from master.resources.configuration import ServiceAccount

TOKEN_KEY, CA_KEY, NAMESPACE_KEY = "token", "ca.crt", "namespace"


def reconcile(
    secrets: Iterable[Secret],
    accounts: Iterable[ServiceAccount],
    ca_certificate: str,
    sign: Callable[[ServiceAccount, Secret], str],
) -> Iterator[Update | ForceDelete | Failed]:
    """Yield the token Secrets with their missing data, and the deletion of those without an account."""
    token_secrets = [
        secret for secret in secrets if secret.type == SERVICE_ACCOUNT_TOKEN and not secret.metadata.deletion_timestamp
    ]
    if not token_secrets:
        return
    accounts_by_name = {(account.metadata.namespace, account.metadata.name): account for account in accounts}

    def sync_secret(secret: Secret) -> Iterator[Update | ForceDelete]:
        meta = secret.metadata
        account = accounts_by_name.get((meta.namespace, meta.annotations[SERVICE_ACCOUNT_NAME]))
        if account is None or meta.annotations.get(SERVICE_ACCOUNT_UID) not in (None, account.metadata.uid):
            yield ForceDelete(secret)
            return
        token = secret.data.get(TOKEN_KEY) or sign(account, secret).encode()
        data = {CA_KEY: ca_certificate.encode(), NAMESPACE_KEY: meta.namespace.encode(), TOKEN_KEY: token}
        annotations = {**meta.annotations, SERVICE_ACCOUNT_UID: account.metadata.uid}
        new = replace(secret, data={**secret.data, **data}, metadata=replace(meta, annotations=annotations))
        if new != secret:
            yield Update(new, secret)

    yield from isolate_errors(token_secrets, sync_secret)


def sync_token_secrets(lister: Lister) -> Iterable[Action]:
    """MutablePart in and delete the token Secrets of service accounts."""

    def sign(account: ServiceAccount, secret: Secret) -> str:
        return lister.context.sign_token(service_account_tokens.secret_token_claims(account, secret, lister.now))

    objects = lister.list(Secret), lister.list(ServiceAccount)
    return reconcile(*objects, lister.context.ca_certificate, sign)


def sync_default_objects(lister: Lister) -> Iterable[Action]:
    """Create and update the default service account and the CA certificate of all namespaces."""
    for obj, old in default_objects(lister.list(Namespace), lister.get, lister.context.ca_certificate):
        yield Create(obj) if old is None else Update(obj, old)
