"""Secrets of the type kubernetes.io/service-account-token: each holds a token of the account that it names. Pure.

The token is good as long as the Secret. One whose account is not there, or another one of that name, goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from msgspec.structs import replace

from api.core.config import ACCOUNT_NAME, ACCOUNT_TOKEN, ACCOUNT_UID, Secret
from master.kinds.service_account import ServiceAccount
from master.writing.outcomes import Change, Drop

TOKEN, AUTHORITY, NAMESPACE = "token", "ca.crt", "namespace"


def passes(
    secrets: Iterable[Secret],
    accounts: Iterable[ServiceAccount],
    authority: str,
    signed: Callable[[ServiceAccount, Secret], str],
) -> Iterator[Change | Drop]:
    """What is missing in them; `signed` makes a token."""
    wanted = [item for item in secrets if item.type == ACCOUNT_TOKEN and not item.metadata.deletion_timestamp]
    if not wanted:
        return
    known = {(item.metadata.namespace, item.metadata.name): item for item in accounts}
    for item in wanted:
        meta = item.metadata
        account = known.get((meta.namespace, meta.annotations[ACCOUNT_NAME]))
        if account is None or meta.annotations.get(ACCOUNT_UID) not in (None, account.metadata.uid):
            yield Drop(item)
            continue
        token = item.data.get(TOKEN) or signed(account, item).encode()
        given = {AUTHORITY: authority.encode(), NAMESPACE: meta.namespace.encode(), TOKEN: token}
        annotations = {**meta.annotations, ACCOUNT_UID: account.metadata.uid}
        new = replace(item, data={**item.data, **given}, metadata=replace(meta, annotations=annotations))
        if new != item:
            yield Change(new, item)
