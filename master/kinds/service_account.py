"""ServiceAccount: who the processes of pods are to the API. Pure."""

from __future__ import annotations

import datetime
from typing import Annotated

from api.meta.types import LocalObjectReference, Object, ObjectReference, merge_keys
from api.validation.registry import KindRules
from master.kinds.kind import AGE, NAME, Kind, Subresource, age


class ServiceAccount(Object, frozen=True):
    """An identity for the processes of pods; `image_pull_secrets` are passwords for registries."""

    API_VERSION = "v1"
    KIND = "ServiceAccount"

    secrets: Annotated[tuple[ObjectReference, ...], merge_keys("name")] = ()
    image_pull_secrets: tuple[LocalObjectReference, ...] = ()
    automount_service_account_token: bool | None = None


def _cells(item: ServiceAccount, now: datetime.datetime) -> tuple[object, ...]:
    return item.metadata.name, age(item.metadata.creation_timestamp, now)


SERVICE_ACCOUNT = Kind(
    type=ServiceAccount,
    plural="serviceaccounts",
    singular="serviceaccount",
    namespaced=True,
    short=("sa",),
    columns=(NAME, AGE),
    cells=_cells,
    own_rules=KindRules(),
    more=(Subresource("token", body=("authentication.k8s.io", "v1", "TokenRequest"), verbs=("create",)),),
)
