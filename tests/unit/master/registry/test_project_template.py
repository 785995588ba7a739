"""Templates of requested projects: the built-in one, own ones, and what is wrong with a template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from api.codec import yaml
from master.config import MasterConfig
from master.registry.project_template import BadTemplate, ProjectTemplate, decode, parse_template, values_of
from master.registry.projects import BUILTIN_TEMPLATE, load_policy
from reconcile.errors import Refused

PROJECT = {
    "apiVersion": "project.openshift.io/v1",
    "kind": "Project",
    "metadata": {"name": "${PROJECT_NAME}", "labels": {"zone": "${ZONE}"}},
}
CONFIG = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "notes"},
    "data": {"text": "${PROJECT_DESCRIPTION} ${UNKNOWN} ${{PROJECT_DESCRIPTION}}", "user": "${PROJECT_ADMIN_USER}"},
}
ZONE = {"name": "ZONE", "value": "north"}


def template(*objects: Any, **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "template.openshift.io/v1",
        "kind": "Template",
        "parameters": [ZONE, {"name": "PROJECT_NAME"}],
        "objects": list(objects),
        **more,
    }


def expanded(parsed: ProjectTemplate, description: str = "d") -> list[Any]:
    values = values_of("red", "Red", description, "bob")
    return [decode(each, parsed.expand(each, values), "red") for each in (parsed.project, *parsed.objects)]


def problems(document: Any) -> dict[str, str]:
    with pytest.raises(BadTemplate) as bad:
        parse_template(document)
    return dict(problem.split(": ", 1) for problem in bad.value.problems)


def test_builtin_template_has_project_administrator_and_limits() -> None:
    parsed = parse_template(yaml.parse_one(BUILTIN_TEMPLATE.read_text()).value)
    project, binding, limits = expanded(parsed, description="It is red")
    assert project.metadata.annotations == {
        "openshift.io/display-name": "Red",
        "openshift.io/description": "It is red",
        "openshift.io/requester": "bob",
    }
    assert (binding.metadata.namespace, binding.role_ref.name, binding.subjects[0].name) == ("red", "admin", "bob")
    (item,) = limits.spec.limits
    assert item.type == "Container"
    for amounts in (item.default, item.default_request, item.max):
        assert amounts.keys() == {"cpu", "memory", "ephemeral-storage"}


def test_own_parameters_are_replaced_and_unknown_references_stay() -> None:
    project, config = expanded(parse_template(template(PROJECT, CONFIG)))
    assert project.metadata.labels["zone"] == "north"
    assert config.metadata.namespace == "red"
    assert config.data == {"text": "d ${UNKNOWN} ${{PROJECT_DESCRIPTION}}", "user": "bob"}


def test_values_of_a_request_are_texts_and_not_expanded_again() -> None:
    hostile = '${PROJECT_ADMIN_USER} ${{ZONE}} {"kind": "Secret"}'
    _, config = expanded(parse_template(template(PROJECT, CONFIG)), description=hostile)
    assert config.data["text"].startswith(hostile)
    whole = {**CONFIG, "data": "${{PROJECT_DESCRIPTION}}"}
    assert problems(template(PROJECT, whole)).keys() == {"objects[1].data"}


def test_own_parameter_may_be_json() -> None:
    replicas = {"name": "HARD", "value": '{"pods": "5"}'}
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "quota"},
        "spec": {"hard": "${{HARD}}"},
    }
    _, created = expanded(parse_template(template(PROJECT, quota, parameters=[ZONE, replicas])))
    assert created.spec.hard == {"pods": "5"}


def test_list_is_a_template_without_parameters() -> None:
    plain = {**PROJECT, "metadata": {"name": "${PROJECT_NAME}"}}
    (project,) = expanded(parse_template({"apiVersion": "v1", "kind": "List", "items": [plain]}))
    assert project.metadata.name == "red"


def test_every_problem_of_a_template_is_named_by_path() -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}
    elsewhere = {**CONFIG, "metadata": {"name": "a", "namespace": "blue"}}
    found = problems(
        template(
            {**PROJECT, "metadata": {"name": "fixed"}},
            node,
            elsewhere,
            {"apiVersion": "v1", "kind": "Wizard", "metadata": {"name": "a"}},
            7,
            {**CONFIG, "metadata": {}},
            parameters=[{"name": "A B"}, {"name": "SECRET", "generate": "expression"}, {"name": "EMPTY"}],
            extra=1,
        )
    )
    assert found.keys() == {
        "objects[0].metadata.name",
        "objects[1].kind",
        "objects[2].metadata.namespace",
        "objects[3].kind",
        "objects[4]",
        "objects[5].metadata.name",
        "parameters[0].name",
        "parameters[1].generate",
        "parameters[2].value",
        "extra",
    }


def test_objects_are_validated_with_an_example() -> None:
    limits = {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "l"},
        "spec": {"limits": [{"type": "Container", "default": {"memory": "lots"}}]},
    }
    binding = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "b"}}
    found = problems(template(PROJECT, limits, binding, {**CONFIG, "dat": {}}))
    assert {path.partition(".")[0] for path in found} == {"objects[1]", "objects[2]", "objects[3]"}
    assert "objects[1].spec.limits[0].default[memory]" in found
    assert "objects[2].roleRef.name" in found


@pytest.mark.parametrize(
    "document",
    [None, [], {}, {"apiVersion": "v1", "kind": "Template", "objects": []}, template(), template(CONFIG),
     template(PROJECT, PROJECT), template(*[CONFIG] * 101)],
)  # fmt: skip
def test_document_that_is_no_template_is_rejected(document: Any) -> None:
    assert problems(document)


def test_file_is_read_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "template.yaml"
    for text in ("kind: [", "a: 1\n---\nb: 2", "{}"):
        path.write_text(text)
        with pytest.raises(Refused, match=r"projectRequestTemplate: .*template\.yaml: .* accepted$"):
            load_policy(MasterConfig(project_request_template=str(path)))
    with pytest.raises(Refused, match="No such file"):
        load_policy(MasterConfig(project_request_template=str(tmp_path / "absent")))
    assert load_policy(MasterConfig()).template.objects
