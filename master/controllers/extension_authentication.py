"""The ConfigMap extension-apiserver-authentication in kube-system: how aggregated API servers know the master. Pure.

They read from it which client certificates are those of the cluster, and which one the master shows when it names
users in headers. The role of the same name lets service accounts read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from api.core.config import ConfigMap
from api.meta.types import ObjectMeta
from master.auth.attributes import FRONT_PROXY_USER
from master.controllers.actions import Action, Create, Update
from master.controllers.context import Lister
from master.controllers.published_config_maps import allow_reading, publish
from master.resources.rbac import Role, RoleBinding

NAMESPACE, NAME = "kube-system", "extension-apiserver-authentication"
ROLE = f"{NAME}-reader"
BINDING = f"system::{ROLE}"
READERS = ("system:kube-controller-manager", "system:kube-scheduler")


def configuration(client_ca: str, front_proxy_ca: str) -> Mapping[str, str]:
    """Return the data of the ConfigMap. The authorities are in PEM."""
    return {
        "client-ca-file": client_ca,
        "requestheader-allowed-names": f'["{FRONT_PROXY_USER}"]',
        "requestheader-client-ca-file": front_proxy_ca,
        "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
        "requestheader-group-headers": '["X-Remote-Group"]',
        "requestheader-uid-headers": '["X-Remote-Uid"]',
        "requestheader-username-headers": '["X-Remote-User"]',
    }


def reconcile(
    data: Mapping[str, str], stored: ConfigMap | None, role: Role | None, binding: RoleBinding | None
) -> Iterator[Create | Update]:
    """Yield the writes of the ConfigMap, and of the permission to read it if it is missing. Other keys stay."""
    meta = ObjectMeta(name=NAME, namespace=NAMESPACE)
    yield from publish(meta, data, stored)
    yield from allow_reading(meta, ("get", "list", "watch"), READERS, (ROLE, role), (BINDING, binding))


def sync_extension_authentication(lister: Lister) -> Iterable[Action]:
    """Keep the ConfigMap as the authorities of this master are."""
    context = lister.context
    if not context.front_proxy_ca:
        return ()
    return reconcile(
        configuration(context.ca_certificate, context.front_proxy_ca),
        lister.get(ConfigMap, NAME, NAMESPACE),
        lister.get(Role, ROLE, NAMESPACE),
        lister.get(RoleBinding, BINDING, NAMESPACE),
    )
