"""The ConfigMap cluster-info in kube-public: URL and authorities of this master, for machines that join. Pure.

Everybody may read it. The names of the objects are those of kubeadm.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator

import yaml
from msgspec.structs import replace

from api.core.cluster_info import AUTHORITY_KEY, KUBECONFIG_KEY, NAME, NAMESPACE
from api.core.config import ConfigMap
from api.meta.types import ObjectMeta
from api.pki import keys
from master.auth.attributes import ANONYMOUS
from master.controllers.actions import Action, Create, Update
from master.controllers.context import Lister
from master.resources.rbac import RBAC_GROUP, PolicyRule, Role, RoleBinding, RoleRef, Subject

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
    if info is None:
        yield Create(ConfigMap(metadata=ObjectMeta(name=NAME, namespace=NAMESPACE), data=data))
    elif info.data != {**info.data, **data}:
        yield Update(replace(info, data={**info.data, **data}), info)
    meta = ObjectMeta(name=ROLE, namespace=NAMESPACE)
    if role is None:
        rule = PolicyRule(verbs=("get",), api_groups=("",), resources=("configmaps",), resource_names=(NAME,))
        yield Create(Role(metadata=meta, rules=(rule,)))
    if binding is None:
        everybody = Subject(kind="User", api_group=RBAC_GROUP, name=ANONYMOUS)
        role_ref = RoleRef(api_group=RBAC_GROUP, kind="Role", name=ROLE)
        yield Create(RoleBinding(metadata=meta, subjects=(everybody,), role_ref=role_ref))


def _kubeconfig(url: str, ca_certificate: str) -> str:
    """Return a kubeconfig without a user and a context, as kubeadm writes it."""
    ca = base64.b64encode(ca_certificate.encode()).decode()
    cluster = {"name": "", "cluster": {"certificate-authority-data": ca, "server": url}}
    document = {"apiVersion": "v1", "kind": "Config", "clusters": [cluster]}
    return yaml.safe_dump(document, sort_keys=False)


def sync_cluster_info(lister: Lister) -> Iterable[Action]:
    """Write the ConfigMap once the address of the server is known."""
    server = lister.context.server_address()
    if server is None:
        return ()
    return reconcile(
        f"https://{server.address}:{server.port}",
        lister.context.ca_certificate,
        keys.authority_ids(lister.context.ca_certificate.encode())[0],
        lister.get(ConfigMap, NAME, NAMESPACE),
        lister.get(Role, ROLE, NAMESPACE),
        lister.get(RoleBinding, ROLE, NAMESPACE),
    )
