"""Rules and selectors choose requests as kube-apiserver does."""

from __future__ import annotations

import pytest

from api.meta.selectors import LabelSelector
from master.admission.matching import MatchAttributes, ResourceVersion, equivalent_resources, match_resources
from master.resources.match_resources import (
    EQUIVALENT,
    EXACT,
    MatchResources,
    NamedRuleWithOperations,
    check_match_resources,
)
from master.resources.scheme import BUILTIN_SCHEME, BY_PATH

PODS = ResourceVersion("", "v1", "pods")


def request(
    resource: ResourceVersion = PODS,
    subresource: str = "",
    *,
    operation: str = "CREATE",
    namespaced: bool = True,
    name: str = "web",
    labels: dict[str, str] | None = None,
    old_labels: dict[str, str] | None = None,
    namespace_labels: dict[str, str] | None = None,
    equivalents: tuple[ResourceVersion, ...] = (),
) -> MatchAttributes:
    return MatchAttributes(
        operation, resource, subresource, namespaced, name, labels or {}, old_labels, namespace_labels, equivalents
    )


def rule(
    resources: str,
    *,
    operations: str = "CREATE",
    group: str = "",
    version: str = "v1",
    scope: str = "*",
    names: tuple[str, ...] = (),
) -> NamedRuleWithOperations:
    return NamedRuleWithOperations(
        operations=tuple(operations.split()),
        api_groups=(group,),
        api_versions=(version,),
        resources=tuple(resources.split()),
        scope=scope,
        resource_names=names,
    )


def matches(attributes: MatchAttributes, *rules: NamedRuleWithOperations) -> bool:
    return match_resources(MatchResources(resource_rules=rules), attributes) is not None


@pytest.mark.parametrize(
    ("pattern", "resource", "subresource", "expected"),
    [
        ("pods", "pods", "", True),
        ("pods", "pods", "status", False),
        ("pods", "services", "", False),
        ("pods/status", "pods", "status", True),
        ("pods/status", "pods", "", False),
        ("pods/*", "pods", "exec", True),
        ("*", "services", "", True),
        ("*", "pods", "status", False),
        ("*/scale", "deployments", "scale", True),
        ("*/scale", "deployments", "status", False),
        ("*/*", "pods", "status", True),
        ("secrets pods", "pods", "", True),
    ],
)
def test_a_rule_names_resources_and_subresources(pattern: str, resource: str, subresource: str, expected: bool) -> None:
    assert matches(request(ResourceVersion("", "v1", resource), subresource), rule(pattern)) is expected


def test_operation_group_and_version_must_all_match() -> None:
    deployments = request(ResourceVersion("apps", "v1", "deployments"))
    assert matches(deployments, rule("deployments", group="apps"))
    assert matches(deployments, rule("deployments", group="*", version="*", operations="*"))
    assert not matches(deployments, rule("deployments", group="apps", operations="UPDATE DELETE"))
    assert not matches(deployments, rule("deployments", group="extensions"))
    assert not matches(deployments, rule("deployments", group="apps", version="v1beta1"))


def test_the_scope_of_a_rule_is_that_of_the_resource() -> None:
    namespace = request(ResourceVersion("", "v1", "namespaces"), namespaced=False)
    assert matches(namespace, rule("namespaces", scope="Cluster"))
    assert not matches(namespace, rule("namespaces", scope="Namespaced"))
    assert matches(request(), rule("pods", scope="Namespaced"))
    assert not matches(request(), rule("pods", scope="Cluster"))


def test_resource_names_select_objects() -> None:
    assert matches(request(name="web"), rule("pods", names=("db", "web")))
    assert not matches(request(name="other"), rule("pods", names=("db", "web")))


def test_an_excluded_request_does_not_match() -> None:
    match = MatchResources(resource_rules=(rule("*"),), exclude_resource_rules=(rule("pods", names=("web",)),))
    assert match_resources(match, request(name="db")) == PODS
    assert match_resources(match, request(name="web")) is None


def test_constraints_without_rules_match_all_that_the_selectors_choose() -> None:
    match = MatchResources(object_selector=LabelSelector(match_labels={"app": "web"}))
    assert match_resources(match, request(labels={"app": "web"})) == PODS
    assert match_resources(match, request(labels={"app": "db"})) is None


def test_the_object_selector_selects_the_object_or_the_old_object() -> None:
    match = MatchResources(object_selector=LabelSelector(match_labels={"app": "web"}))
    assert match_resources(match, request(labels={}, old_labels={"app": "web"})) == PODS
    assert match_resources(match, request(labels={}, old_labels={})) is None


def test_the_namespace_selector_selects_every_object_without_a_namespace() -> None:
    match = MatchResources(namespace_selector=LabelSelector(match_labels={"team": "red"}))
    assert match_resources(match, request(namespace_labels={"team": "red"})) == PODS
    assert match_resources(match, request(namespace_labels={"team": "blue"})) is None
    node = ResourceVersion("", "v1", "nodes")
    assert match_resources(match, request(node, namespaced=False, namespace_labels=None)) == node


def test_an_equivalent_resource_matches_unless_the_policy_is_exact() -> None:
    legacy = ResourceVersion("authorization.openshift.io", "v1", "roles")
    roles = ResourceVersion("rbac.authorization.k8s.io", "v1", "roles")
    equivalents = equivalent_resources(BY_PATH[legacy], BUILTIN_SCHEME)
    assert equivalents == (roles,)
    rules = (rule("roles", group=roles.group),)
    attributes = request(legacy, equivalents=equivalents)
    assert match_resources(MatchResources(resource_rules=rules, match_policy=EQUIVALENT), attributes) == roles
    assert match_resources(MatchResources(resource_rules=rules, match_policy=EXACT), attributes) is None


def test_an_excluded_equivalent_is_excluded() -> None:
    legacy, roles = ResourceVersion("a", "v1", "roles"), ResourceVersion("b", "v1", "roles")
    match = MatchResources(resource_rules=(rule("*", group="*"),), exclude_resource_rules=(rule("roles", group="b"),))
    assert match_resources(match, request(legacy)) == legacy
    assert match_resources(match, request(legacy, equivalents=(roles,))) is None


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        (rule("pods", operations=""), "operations"),
        (rule("pods", operations="CREATE *"), "operations"),
        (rule("pods", operations="GET"), "operations[0]"),
        (rule(""), "resources"),
        (rule("pods/"), "resources[0]"),
        (rule("* pods"), "resources"),
        (rule("*/* pods"), "resources"),
        (rule("pods/* pods/status"), "resources[1]"),
        (rule("*/scale pods/scale"), "resources[1]"),
        (rule("pods", version=""), "apiVersions[0]"),
        (rule("pods", scope="Other"), "scope"),
    ],
)
def test_wrong_rules_are_refused(wrong: NamedRuleWithOperations, path: str) -> None:
    errors = check_match_resources("spec", MatchResources(resource_rules=(wrong,)))
    assert [error.path for error in errors] == [f"spec.resourceRules[0].{path}"]


def test_right_rules_are_accepted() -> None:
    rules = (rule("pods pods/status"), rule("*/*", operations="*"), rule("* */status"))
    assert list(check_match_resources("spec", MatchResources(resource_rules=rules))) == []
