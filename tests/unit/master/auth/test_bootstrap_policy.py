"""The default roles name resources that the server has."""

from __future__ import annotations

import pytest

from master.auth.bootstrap_policy import ROLES
from master.resources.rbac import ClusterRole
from master.resources.scheme import SERVED
from master.resources.virtual import VIRTUAL_RESOURCES

NAMES_WITHOUT_A_PATH = {
    *(("", f"nodes/{name}") for name in ("configz", "healthz", "log", "metrics", "pods", "spec", "stats")),
    ("certificates.k8s.io", "signers"),
    ("certificates.k8s.io", "certificatesigningrequests/nodeclient"),
    ("certificates.k8s.io", "certificatesigningrequests/selfnodeclient"),
    ("apps", "deployments/rollback"),
    *(("", name) for name in ("users", "groups")),
    *((group, name) for group in ("", "user.openshift.io") for name in ("systemusers", "systemgroups")),
    ("authentication.k8s.io", "userextras/scopes.authorization.openshift.io"),
    *((group, "*") for group in ("custom.metrics.k8s.io", "external.metrics.k8s.io")),
}
"""What roles grant by names that are no path of this API server: paths of kubelets, signers, users to impersonate, a
removed path, and metrics of aggregated APIs.
"""


def served_names() -> set[tuple[str, str]]:
    """Return (API group, plural) of all resources, and (API group, plural/subresource)."""
    names = {(group, resource.plural) for group, resources in VIRTUAL_RESOURCES.items() for resource in resources}
    for resource in SERVED:
        names.add((resource.group, resource.plural))
        names |= {(resource.group, f"{resource.plural}/{part.name}") for part in resource.all_subresources}
    return names


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.metadata.name)
def test_default_role_names_served_resources(role: ClusterRole) -> None:
    known = served_names() | NAMES_WITHOUT_A_PATH | {("*", "*")}
    named = {(group, name) for rule in role.rules for group in rule.api_groups for name in rule.resources}
    assert named - known == set()
