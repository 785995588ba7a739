"""ConfigMap, Secret and ServiceAccount. Pure."""

from __future__ import annotations

from typing import Annotated

from api.core.config import ConfigMap, Secret
from api.meta.types import LocalObjectReference, Object, ObjectReference, merge_keys
from api.validation.registry import RULES, KindRules
from master.resources.printing import AGE, NAME
from master.resources.resource import Column, Resource, Subresource

CONFIG_MAPS = Resource(
    type=ConfigMap,
    short_names=("cm",),
    columns=(
        NAME,
        Column("Data", "Number of keys.", lambda config_map, _: len(config_map.data) + len(config_map.binary_data)),
        AGE,
    ),
    rules=RULES[ConfigMap],
    acted_on_by="node agents, for volumes and environment variables of pods",
)


SECRETS = Resource(
    type=Secret,
    columns=(
        NAME,
        Column("Type", "Which keys are to be expected.", lambda secret, _: secret.type),
        Column("Data", "Number of keys.", lambda secret, _: len(secret.data)),
        AGE,
    ),
    rules=RULES[Secret],
    selectable_fields=lambda obj: {"type": obj.type},
    acted_on_by=(
        "node agents, for volumes, environment variables and registries; the master writes a token into "
        "Secrets of the type service-account-token"
    ),
)


class ServiceAccount(Object, frozen=True):
    """An identity for the processes of pods; `image_pull_secrets` are passwords for registries."""

    API_VERSION = "v1"
    KIND = "ServiceAccount"
    PLURAL = "serviceaccounts"
    NAMESPACED = True

    secrets: Annotated[tuple[ObjectReference, ...], merge_keys("name")] = ()
    image_pull_secrets: tuple[LocalObjectReference, ...] = ()
    automount_service_account_token: bool | None = None


SERVICE_ACCOUNTS = Resource(
    type=ServiceAccount,
    short_names=("sa",),
    columns=(NAME, AGE),
    rules=KindRules(),
    subresources=(Subresource("token", body_kind=("authentication.k8s.io", "v1", "TokenRequest"), verbs=("create",)),),
    acted_on_by="the master issues tokens for pods",
)
