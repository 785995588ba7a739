"""Which requests an audit policy records at which level."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from master.audit.policy import DEFAULT_POLICY, InvalidPolicy, evaluate, parse_policy
from master.auth.attributes import Attributes, PathAttributes, User

ANN = User("ann", frozenset(("system:authenticated", "dev")))
PODS = Attributes("create", "", "pods", "", "red", "web")
LOG = Attributes("get", "", "pods", "log", "red", "web")
NODE = Attributes("get", "", "nodes", "", "", "n1")
SECRET = Attributes("get", "", "secrets", "", "red", "s")
HEALTH = PathAttributes("get", "/healthz/etcd")


def policy(*rules: dict[str, Any], **rest: Any) -> Any:
    return parse_policy({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": list(rules), **rest})


def of_group(*resources: str, group: str = "", names: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    return [{"group": group, "resources": list(resources), "resourceNames": list(names)}]


@pytest.mark.parametrize(
    ("rule", "requested", "matches"),
    [
        ({}, PODS, True),
        ({}, HEALTH, True),
        ({"users": ["ann"]}, PODS, True),
        ({"users": ["bob"]}, PODS, False),
        ({"userGroups": ["dev", "ops"]}, PODS, True),
        ({"userGroups": ["ops"]}, PODS, False),
        ({"verbs": ["create", "update"]}, PODS, True),
        ({"verbs": ["get"]}, PODS, False),
        ({"namespaces": ["red"]}, PODS, True),
        ({"namespaces": ["blue"]}, PODS, False),
        ({"namespaces": [""]}, NODE, True),
        ({"namespaces": [""]}, PODS, False),
        ({"namespaces": [""]}, HEALTH, False),
        ({"resources": of_group()}, PODS, True),
        ({"resources": of_group(group="apps")}, PODS, False),
        ({"resources": of_group("pods")}, PODS, True),
        ({"resources": of_group("pods")}, LOG, False),
        ({"resources": of_group("pods/log")}, LOG, True),
        ({"resources": of_group("pods/*")}, LOG, True),
        ({"resources": of_group("pods/*")}, PODS, False),
        ({"resources": of_group("*/log")}, LOG, True),
        ({"resources": of_group("*")}, LOG, True),
        ({"resources": of_group("pods", names=("web",))}, PODS, True),
        ({"resources": of_group("pods", names=("db",))}, PODS, False),
        ({"nonResourceURLs": ["/healthz*"]}, HEALTH, True),
        ({"nonResourceURLs": ["/healthz"]}, HEALTH, False),
        ({"nonResourceURLs": ["*"]}, HEALTH, True),
        ({"nonResourceURLs": ["*"]}, PODS, False),
    ],
)
def test_rule_matches_requests(rule: dict[str, Any], requested: Any, matches: bool) -> None:
    level = evaluate(policy({"level": "Metadata", **rule}), ANN, requested).level
    assert level == ("Metadata" if matches else "None")


def test_first_matching_rule_decides() -> None:
    rules = policy({"level": "None", "users": ["ann"]}, {"level": "Request"})
    assert evaluate(rules, ANN, PODS).level == "None"
    assert evaluate(rules, User("bob"), PODS).level == "Request"


def test_stages_are_omitted_by_rule_and_policy() -> None:
    rules = policy({"level": "Request", "omitStages": ["ResponseStarted"]}, omitStages=["RequestReceived"])
    level = evaluate(rules, ANN, PODS)
    stages = ("RequestReceived", "ResponseStarted", "ResponseComplete", "Panic")
    assert [stage for stage in stages if level.records(stage)] == ["ResponseComplete", "Panic"]


@pytest.mark.parametrize(
    "requested",
    [
        SECRET,
        Attributes("create", "", "serviceaccounts", "token", "red", "default"),
        Attributes("create", "authentication.k8s.io", "tokenreviews"),
    ],
)
def test_contents_of_secrets_and_tokens_are_never_recorded(requested: Attributes) -> None:
    assert evaluate(policy({"level": "RequestResponse"}), ANN, requested).level == "Metadata"
    assert evaluate(policy({"level": "RequestResponse"}), ANN, PODS).level == "RequestResponse"
    assert evaluate(policy({"level": "None"}), ANN, requested).level == "None"


def test_default_policy_records_metadata_without_the_constant_requests() -> None:
    assert evaluate(DEFAULT_POLICY, ANN, PODS).level == "Metadata"
    assert evaluate(DEFAULT_POLICY, ANN, SECRET).level == "Metadata"
    assert evaluate(DEFAULT_POLICY, ANN, PathAttributes("get", "/debug")).level == "Metadata"
    lease = Attributes("update", "coordination.k8s.io", "leases", "", "kube-node-lease", "n1")
    for requested in (HEALTH, PathAttributes("get", "/metrics"), lease):
        assert evaluate(DEFAULT_POLICY, ANN, requested).level == "None"


LEVELS = "None, Metadata, Request, RequestResponse are accepted"
STAGES = "RequestReceived, ResponseStarted, ResponseComplete, Panic are accepted"
PATHS = "a path such as /healthz is accepted, also with `*` at its end"


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ([], "the document: found a list; a Policy is accepted"),
        ({"kind": "Pod", "rules": [{"level": "None"}]}, "kind: found 'Pod'; Policy is accepted"),
        (
            {"apiVersion": "audit.k8s.io/v1beta1", "rules": [{"level": "None"}]},
            "apiVersion: found 'audit.k8s.io/v1beta1'; audit.k8s.io/v1 is accepted",
        ),
        ({"rules": []}, "rules: found an empty list; at least one rule is accepted"),
        ({"rules": [{"level": "All"}]}, f"rules[0].level: found 'All'; {LEVELS}"),
        ({"rules": [{}]}, "rules[0].level: is missing; a text is accepted"),
        ({"rules": [{"level": "None", "user": ["a"]}]}, 'rules[0].user: is not a field; did you mean "users"?'),
        ({"rules": [{"level": "None", "omitStages": ["End"]}]}, f"rules[0].omitStages[0]: found 'End'; {STAGES}"),
        ({"rules": [{"level": "None"}], "omitStages": ["End"]}, f"omitStages[0]: found 'End'; {STAGES}"),
        (
            {"rules": [{"level": "None", "nonResourceURLs": ["/a*b"]}]},
            f"rules[0].nonResourceURLs[0]: found '/a*b'; {PATHS}",
        ),
        ({"rules": [{"level": "None", "nonResourceURLs": ["a"]}]}, f"rules[0].nonResourceURLs[0]: found 'a'; {PATHS}"),
        (
            {"rules": [{"level": "None", "nonResourceURLs": ["/a"], "namespaces": ["red"]}]},
            "rules[0]: found nonResourceURLs beside resources or namespaces; one of both is accepted",
        ),
    ],
)
def test_invalid_policy_is_rejected_with_what_is_accepted(document: Any, problem: str) -> None:
    with pytest.raises(InvalidPolicy) as raised:
        parse_policy(document)
    assert raised.value.problems == (problem,)


def test_example_of_the_documentation_is_accepted() -> None:
    text = (Path(__file__).resolve().parents[4] / "docs" / "operations" / "audit.md").read_text()
    policy = parse_policy(yaml.safe_load(text.split("```yaml\n")[1].split("```")[0]))
    assert [rule.level for rule in policy.rules] == ["None", "None", "Request", "Metadata"]
