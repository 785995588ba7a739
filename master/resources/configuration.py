"""ConfigMap, Secret and ServiceAccount. Pure."""

from __future__ import annotations

import datetime
from typing import Annotated

from api.core.config import ConfigMap, Secret
from api.meta.types import LocalObjectReference, Object, ObjectReference, merge_keys
from api.validation.registry import RULES, KindRules
from master.resources.printing import AGE, NAME, age
from master.resources.resource import Column, Resource, Subresource


def _config_map_cells(item: ConfigMap, now: datetime.datetime) -> tuple[object, ...]:
    return item.metadata.name, len(item.data) + len(item.binary_data), age(item.metadata.creation_timestamp, now)


CONFIG_MAPS = Resource(
    type=ConfigMap,
    plural="configmaps",
    namespaced=True,
    short_names=("cm",),
    columns=(NAME, Column("Data", "How many keys it has."), AGE),
    rules=RULES[ConfigMap],
    cells=_config_map_cells,
)


def _secret_cells(item: Secret, now: datetime.datetime) -> tuple[object, ...]:
    return item.metadata.name, item.type, len(item.data), age(item.metadata.creation_timestamp, now)


SECRETS = Resource(
    type=Secret,
    plural="secrets",
    namespaced=True,
    columns=(NAME, Column("Type", "Which keys are to be expected."), Column("Data", "How many keys it has."), AGE),
    rules=RULES[Secret],
    cells=_secret_cells,
    selectable_fields=lambda item: {"type": item.type},
)


class ServiceAccount(Object, frozen=True):
    """An identity for the processes of pods; `image_pull_secrets` are passwords for registries."""

    API_VERSION = "v1"
    KIND = "ServiceAccount"

    secrets: Annotated[tuple[ObjectReference, ...], merge_keys("name")] = ()
    image_pull_secrets: tuple[LocalObjectReference, ...] = ()
    automount_service_account_token: bool | None = None


def _service_account_cells(item: ServiceAccount, now: datetime.datetime) -> tuple[object, ...]:
    return item.metadata.name, age(item.metadata.creation_timestamp, now)


SERVICE_ACCOUNTS = Resource(
    type=ServiceAccount,
    plural="serviceaccounts",
    namespaced=True,
    short_names=("sa",),
    columns=(NAME, AGE),
    cells=_service_account_cells,
    rules=KindRules(),
    subresources=(Subresource("token", body_kind=("authentication.k8s.io", "v1", "TokenRequest"), verbs=("create",)),),
)
