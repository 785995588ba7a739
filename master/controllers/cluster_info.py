"""The ConfigMap cluster-info in kube-public: URL and authorities of this master, for machines that join. Pure.

Everybody may read it. The names of the objects are those of kubeadm.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from functools import lru_cache

import yaml

from api.core.cluster_info import AUTHORITY_KEY, KUBECONFIG_KEY, NAME, NAMESPACE
from api.core.config import ConfigMap
from api.meta.types import ObjectMeta
from api.pki import keys
from master.auth.attributes import ANONYMOUS
from master.controllers.actions import Action, Create, Update
from master.controllers.context import Lister
from master.controllers.published_config_maps import allow_reading, publish
from master.resources.rbac import Role, RoleBinding

ROLE = "kubeadm:bootstrap-signer-clusterinfo"


def reconcile(
    url: str,
    ca_certificate: str,
    authority: str,
    info: ConfigMap | None,
    role: Role | None,
    binding: RoleBinding | None,
) -> Iterator[Create | Update]:
    """Yield the writes of the ConfigMap, and the permission to read it if it is missing. Other keys stay.

    `authority` is the key identifier of the authority that signs.
    """
    data = {KUBECONFIG_KEY: _kubeconfig(url, ca_certificate), AUTHORITY_KEY: authority}
    meta = ObjectMeta(name=NAME, namespace=NAMESPACE)
    yield from publish(meta, data, info)
    yield from allow_reading(meta, ("get",), (ANONYMOUS,), (ROLE, role), (ROLE, binding))


@lru_cache(maxsize=8)
def _kubeconfig(url: str, ca_certificate: str) -> str:
    """Return a kubeconfig without a user and a context, as kubeadm writes it. YAML takes 2 ms, in a pass after every
    write of a ConfigMap.
    """
    ca = base64.b64encode(ca_certificate.encode()).decode()
    cluster = {"name": "", "cluster": {"certificate-authority-data": ca, "server": url}}
    document = {"apiVersion": "v1", "kind": "Config", "clusters": [cluster]}
    return yaml.safe_dump(document, sort_keys=False)


@lru_cache(maxsize=8)
def _authority_id(ca_certificate: str) -> str:
    """Return the key identifier of the authority that signs."""
    return keys.authority_ids(ca_certificate.encode())[0]


def sync_cluster_info(lister: Lister) -> Iterable[Action]:
    """Write the ConfigMap once the address of the server is known."""
    server = lister.context.server_address()
    if server is None:
        return ()
    return reconcile(
        f"https://{server.address}:{server.port}",
        lister.context.ca_certificate,
        _authority_id(lister.context.ca_certificate),
        lister.get(ConfigMap, NAME, NAMESPACE),
        lister.get(Role, ROLE, NAMESPACE),
        lister.get(RoleBinding, ROLE, NAMESPACE),
    )
