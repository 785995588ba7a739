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
    namespaces: Iterable[Namespace], accounts: Iterable[ServiceAccount], configs: Iterable[ConfigMap], authority: str
) -> Iterator[Create | Update]:
    """Each project has the account `default`, and the authority by which its pods know this server, in a ConfigMap."""
    known = {item.metadata.namespace for item in accounts if item.metadata.name == DEFAULT_SERVICE_ACCOUNT}
    told = {item.metadata.namespace: item for item in configs if item.metadata.name == ROOT_CA_CONFIGMAP}
    for namespace in namespaces:
        name = namespace.metadata.name
        if namespace.metadata.deletion_timestamp:
            continue
        if name not in known:
            yield Create(ServiceAccount(metadata=ObjectMeta(name=DEFAULT_SERVICE_ACCOUNT, namespace=name)))
        wanted = {"ca.crt": authority}
        old = told.get(name)
        if old is None:
            yield Create(ConfigMap(metadata=ObjectMeta(name=ROOT_CA_CONFIGMAP, namespace=name), data=wanted))
        elif old.data != wanted:
            yield Update(ConfigMap(api_version=old.api_version, kind=old.kind, metadata=old.metadata, data=wanted), old)
