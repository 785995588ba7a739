"""Service accounts: one in each project from the start, and what their tokens say. Pure. Raises `answers.Failure`."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from api.core.auth import TokenRequest
from api.core.config import ConfigMap, Secret
from api.core.node import Namespace
from api.meta.schema import FieldError, quoted
from api.meta.types import Object, ObjectMeta
from master.access.authorize import User
from master.kinds import ALL
from master.kinds.service_account import SERVICE_ACCOUNT, ServiceAccount
from master.wire import answers
from master.writing.outcomes import Change, Make

DEFAULT = "default"
ROOT_CA = "kube-root-ca.crt"
ISSUER = "https://kubernetes.default.svc.cluster.local"
"""Who says what is in a token, and for whom it is if nobody else is named."""

SHORTEST, USUAL, LONGEST = 600, 3600, 1 << 32
"""Seconds that a token is good for."""

PREFIX = "system:serviceaccount:"
BINDABLE = ("Pod", "Secret", "Node")
PRIVATE = "kubernetes.io"
"""The claim that says for which objects a token was given."""

Claims = Mapping[str, Any]


def passes(
    namespaces: Iterable[Namespace], accounts: Iterable[ServiceAccount], configs: Iterable[ConfigMap], authority: str
) -> Iterator[Make | Change]:
    """Each project has the account `default`, and the authority by which its pods know this server, in a ConfigMap."""
    known = {item.metadata.namespace for item in accounts if item.metadata.name == DEFAULT}
    told = {item.metadata.namespace: item for item in configs if item.metadata.name == ROOT_CA}
    for namespace in namespaces:
        name = namespace.metadata.name
        if namespace.metadata.deletion_timestamp:
            continue
        if name not in known:
            yield Make(ServiceAccount(metadata=ObjectMeta(name=DEFAULT, namespace=name)))
        wanted = {"ca.crt": authority}
        old = told.get(name)
        if old is None:
            yield Make(ConfigMap(metadata=ObjectMeta(name=ROOT_CA, namespace=name), data=wanted))
        elif old.data != wanted:
            yield Change(ConfigMap(api_version=old.api_version, kind=old.kind, metadata=old.metadata, data=wanted), old)


# --- what a token says ------------------------------------------------------------------------------------------------


def claims(
    account: ServiceAccount, asked: TokenRequest, bound: Object | None, now: datetime.datetime
) -> dict[str, Any]:
    """The claims of a token (RFC 7519); `bound` is the object that the request names, if there is one."""
    spec, meta = asked.spec, account.metadata
    seconds = USUAL if spec.expiration_seconds is None else spec.expiration_seconds
    if not SHORTEST <= seconds <= LONGEST:
        problem = FieldError("spec.expirationSeconds", quoted(seconds), f"may not be less than {SHORTEST} (10 minutes)")
        raise answers.invalid(SERVICE_ACCOUNT, meta.name, [problem])
    private: dict[str, Any] = {"namespace": meta.namespace, "serviceaccount": {"name": meta.name, "uid": meta.uid}}
    reference = spec.bound_object_ref
    if reference is not None:
        if reference.kind not in BINDABLE:
            problem = FieldError(
                "spec.boundObjectRef.kind", quoted(reference.kind), f"{', '.join(BINDABLE)} are accepted"
            )
            raise answers.invalid(SERVICE_ACCOUNT, meta.name, [problem])
        bindable = next(kind for kind in ALL if kind.name == reference.kind)
        if bound is None:
            raise answers.not_found(bindable, reference.name)
        if reference.uid not in ("", bound.metadata.uid):
            why = (
                f"the UID in the bound object reference ({reference.uid}) does not match the UID in record. "
                "The object might have been deleted and then recreated"
            )
            raise answers.conflict(bindable, reference.name, why)
        private[reference.kind.lower()] = {"name": bound.metadata.name, "uid": bound.metadata.uid}
    begin = int(now.timestamp())
    return {**_claims(account, private, begin), "aud": list(spec.audiences) or [ISSUER], "exp": begin + seconds}


def lasting_claims(account: ServiceAccount, secret: Secret, now: datetime.datetime) -> dict[str, Any]:
    """The claims of a token that is good as long as the Secret is there which it stands in."""
    meta, held = account.metadata, secret.metadata
    private = {
        "namespace": meta.namespace,
        "serviceaccount": {"name": meta.name, "uid": meta.uid},
        "secret": {"name": held.name, "uid": held.uid},
    }
    return {**_claims(account, private, int(now.timestamp())), "aud": [ISSUER]}


def _claims(account: ServiceAccount, private: Claims, begin: int) -> dict[str, Any]:
    meta = account.metadata
    return {
        "iss": ISSUER,
        "sub": f"{PREFIX}{meta.namespace}:{meta.name}",
        "iat": begin,
        "nbf": begin,
        PRIVATE: private,
    }


def needed(found: Claims) -> list[tuple[str, str, str, str]]:
    """(kind, namespace, name, uid) of every object without which a token is worth nothing."""
    private = found[PRIVATE]
    rows = [("ServiceAccount", "serviceaccount"), *((kind, kind.lower()) for kind in BINDABLE)]
    return [
        (kind, "" if kind == "Node" else private["namespace"], private[key]["name"], private[key]["uid"])
        for kind, key in rows
        if key in private
    ]


def user(found: Claims) -> User:
    """Who presents a token."""
    private = found[PRIVATE]
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{private['namespace']}", "system:authenticated")
    pod = private.get("pod", {})
    extra = tuple((f"authentication.kubernetes.io/pod-{key}", (pod[key],)) for key in ("name", "uid") if key in pod)
    return User(found["sub"], frozenset(groups), private["serviceaccount"]["uid"], extra)


def audiences(found: Claims, wanted: Collection[str]) -> tuple[str, ...]:
    """For which of the wanted audiences a token is meant; without a wish, for this server."""
    return tuple(one for one in (wanted or (ISSUER,)) if one in found["aud"])
