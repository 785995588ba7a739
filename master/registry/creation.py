"""Objects that are created together with others. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from api.core.config import ConfigMap
from api.core.node import Namespace
from api.meta.types import ObjectMeta
from master.auth.service_account_tokens import DEFAULT_SERVICE_ACCOUNT, ROOT_CA_CONFIGMAP
from master.controllers.actions import Create, Update
from master.resources.configuration import ServiceAccount


def reconcile_companions(
    namespaces: Iterable[Namespace],
    accounts: Iterable[ServiceAccount],
    configs: Iterable[ConfigMap],
    ca_certificate: str,
) -> Iterator[Create | Update]:
    """Yield the service account `default` and the ConfigMap with the CA certificate of namespaces without them."""
    with_account = {item.metadata.namespace for item in accounts if item.metadata.name == DEFAULT_SERVICE_ACCOUNT}
    ca_configs = {item.metadata.namespace: item for item in configs if item.metadata.name == ROOT_CA_CONFIGMAP}
    for namespace in namespaces:
        name = namespace.metadata.name
        if namespace.metadata.deletion_timestamp:
            continue
        if name not in with_account:
            yield Create(ServiceAccount(metadata=ObjectMeta(name=DEFAULT_SERVICE_ACCOUNT, namespace=name)))
        data = {"ca.crt": ca_certificate}
        old = ca_configs.get(name)
        if old is None:
            yield Create(ConfigMap(metadata=ObjectMeta(name=ROOT_CA_CONFIGMAP, namespace=name), data=data))
        elif old.data != data:
            yield Update(ConfigMap(api_version=old.api_version, kind=old.kind, metadata=old.metadata, data=data), old)
