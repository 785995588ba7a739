"""Rules and selectors by which admission webhooks and admission policies choose requests. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

from msgspec.structs import replace

from api.meta.names import label_key_error
from api.meta.schema import DUPLICATE, MISSING, TOO_MANY, FieldError, quoted, unsupported_values
from api.meta.selectors import LabelSelector, check_selector
from api.meta.types import Value, merge_keys

ANY = "*"
OPERATIONS = ("CREATE", "UPDATE", "DELETE", "CONNECT")
CLUSTER_SCOPE, NAMESPACED_SCOPE = "Cluster", "Namespaced"
EXACT, EQUIVALENT = "Exact", "Equivalent"
FAIL, IGNORE = "Fail", "Ignore"

ADMISSION_GROUP = "admissionregistration.k8s.io"
"""The group of webhooks and policies. Neither is ever applied to the kinds of it."""

MAX_MATCH_CONDITIONS = 64
MAX_RULES = 1000
"""Rules of an object, which each request is compared with. Kubernetes has no limit."""


class RuleWithOperations(Value, frozen=True):
    """A rule that chooses requests. All parts must match.

    `operations` are CREATE, UPDATE, DELETE, CONNECT or `*`. `api_groups` and `api_versions` are names or `*`.
    `resources` are such as `pods`, `pods/status`, `pods/*`, `*/scale`, `*` (without subresources) or `*/*`. `scope` is
    Cluster, Namespaced or `*`.
    """

    operations: tuple[str, ...] = ()
    api_groups: tuple[str, ...] = ()
    api_versions: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    scope: str = ""


class NamedRuleWithOperations(RuleWithOperations, frozen=True):
    """A rule that chooses requests, and objects by their names. Without `resource_names` it chooses all objects."""

    resource_names: tuple[str, ...] = ()


class MatchResources(Value, frozen=True):
    """The requests to which a policy or a binding applies.

    A request must match a rule of `resource_rules`, if there is any, and none of `exclude_resource_rules`.
    `namespace_selector` selects the labels of the namespace; it selects every object without a namespace. A label
    selector in `object_selector` must select the object or the old object. With the `match_policy` Equivalent a rule
    also matches a request for the same objects in another version; with Exact it does not.
    """

    resource_rules: tuple[NamedRuleWithOperations, ...] = ()
    exclude_resource_rules: tuple[NamedRuleWithOperations, ...] = ()
    namespace_selector: LabelSelector | None = None
    object_selector: LabelSelector | None = None
    match_policy: str = ""


class MatchCondition(Value, frozen=True):
    """A condition in CEL that a request must fulfil. `name` names it in messages."""

    name: str
    expression: str


MatchConditions = Annotated[tuple[MatchCondition, ...], merge_keys("name")]


# --- defaults ---------------------------------------------------------------------------------------------------------


def default_match_resources(match: MatchResources) -> MatchResources:
    """Return the match constraints with their defaults."""
    return replace(
        match,
        resource_rules=tuple(replace(rule, scope=rule.scope or ANY) for rule in match.resource_rules),
        exclude_resource_rules=tuple(replace(rule, scope=rule.scope or ANY) for rule in match.exclude_resource_rules),
        namespace_selector=match.namespace_selector or LabelSelector(),
        object_selector=match.object_selector or LabelSelector(),
        match_policy=match.match_policy or EQUIVALENT,
    )


# --- validation -------------------------------------------------------------------------------------------------------


def check_match_resources(path: str, match: MatchResources) -> Iterator[FieldError]:
    """Yield the errors of match constraints."""
    yield from unsupported_values((f"{path}.matchPolicy", match.match_policy, (EQUIVALENT, EXACT)))
    for name, selector in (
        ("namespaceSelector", match.namespace_selector),
        ("objectSelector", match.object_selector),
    ):
        if selector is not None:
            yield from check_selector(f"{path}.{name}", selector)
    for name, rules in (
        ("resourceRules", match.resource_rules),
        ("excludeResourceRules", match.exclude_resource_rules),
    ):
        yield from check_rules(f"{path}.{name}", rules)
        for index, rule in enumerate(rules):
            names_path = f"{path}.{name}[{index}].resourceNames"
            if len(set(rule.resource_names)) != len(rule.resource_names):
                yield FieldError(names_path, quoted(rule.resource_names), "must not name an object twice")


def check_rules(path: str, rules: Sequence[RuleWithOperations]) -> Iterator[FieldError]:
    """Yield the errors of rules, those of webhooks too."""
    if len(rules) > MAX_RULES:
        yield FieldError(path, str(len(rules)), f"must have at most {MAX_RULES} items")
        return
    for index, rule in enumerate(rules):
        at = f"{path}[{index}]"
        yield from _check_operations(f"{at}.operations", rule.operations)
        yield from _check_names(f"{at}.apiGroups", rule.api_groups, allows_empty=True)
        yield from _check_names(f"{at}.apiVersions", rule.api_versions, allows_empty=False)
        yield from _check_resources(f"{at}.resources", rule.resources)
        if rule.scope not in ("", ANY, CLUSTER_SCOPE, NAMESPACED_SCOPE):
            yield from unsupported_values((f"{at}.scope", rule.scope, (ANY, CLUSTER_SCOPE, NAMESPACED_SCOPE)))


def _check_operations(path: str, operations: Sequence[str]) -> Iterator[FieldError]:
    if not operations:
        yield FieldError(path, "", "", MISSING)
    if len(operations) > 1 and ANY in operations:
        yield FieldError(path, quoted(operations), "if '*' is present, must not specify other operations")
    for index, operation in enumerate(operations):
        yield from unsupported_values((f"{path}[{index}]", operation, (ANY, *sorted(OPERATIONS))))


def _check_names(path: str, names: Sequence[str], *, allows_empty: bool) -> Iterator[FieldError]:
    if not names:
        yield FieldError(path, "", "", MISSING)
    if len(names) > 1 and ANY in names:
        yield FieldError(path, quoted(names), "if '*' is present, must not specify other API versions")
    if not allows_empty:
        yield from (FieldError(f"{path}[{index}]", "", "", MISSING) for index, name in enumerate(names) if not name)


def _check_resources(path: str, resources: Sequence[str]) -> Iterator[FieldError]:
    if not resources:
        yield FieldError(path, "", "", MISSING)
    if len(resources) > 1 and "*/*" in resources:
        yield FieldError(path, quoted(resources), "if '*/*' is present, must not specify other resources")
    elif len(resources) > 1 and ANY in resources and any("/" not in name for name in resources if name != ANY):
        detail = "if '*' is present, must not specify other resources without subresources"
        yield FieldError(path, quoted(resources), detail)
    with_any = {name.removesuffix("/*") for name in resources if name.endswith("/*")}
    any_with = {name.removeprefix("*/") for name in resources if name.startswith("*/")}
    for index, name in enumerate(resources):
        resource, slash, subresource = name.partition("/")
        at = f"{path}[{index}]"
        if not resource or (slash and not subresource):
            yield FieldError(at, quoted(name), "must be such as pods, pods/status, pods/*, */status, */* or *")
        elif slash and subresource != ANY and resource in with_any:
            detail = f"if '{resource}/*' is present, must not specify {name}"
            yield FieldError(at, quoted(name), detail)
        elif slash and resource != ANY and subresource in any_with and subresource != ANY:
            yield FieldError(at, quoted(name), f"if '*/{subresource}' is present, must not specify {name}")


def check_match_condition_names(path: str, conditions: Sequence[MatchCondition]) -> Iterator[FieldError]:
    """Yield the errors of match conditions, except those of their expressions."""
    if len(conditions) > MAX_MATCH_CONDITIONS:
        detail = f"must have at most {MAX_MATCH_CONDITIONS} items"
        yield FieldError(path, str(len(conditions)), detail, TOO_MANY)
        return
    seen: set[str] = set()
    for index, condition in enumerate(conditions):
        at = f"{path}[{index}]"
        if not condition.name:
            yield FieldError(f"{at}.name", "", "", MISSING)
        elif problem := label_key_error(condition.name):
            yield FieldError(f"{at}.name", quoted(condition.name), problem)
        if condition.name in seen:
            yield FieldError(f"{at}.name", quoted(condition.name), "", DUPLICATE)
        seen.add(condition.name)
        if not condition.expression.strip():
            yield FieldError(f"{at}.expression", "", "", MISSING)
