"""ValidatingAdmissionPolicies against a real master: what clients see of bound policies."""

from __future__ import annotations

from typing import Any

from tests.testbed.apiserver.custom_kind import establish
from tests.testbed.apiserver.untyped_client import UntypedClient

GROUP = "/apis/admissionregistration.k8s.io/v1"
POLICIES, BINDINGS = f"{GROUP}/validatingadmissionpolicies", f"{GROUP}/validatingadmissionpolicybindings"


def rules(*resources: str, group: str = "", operations: tuple[str, ...] = ("CREATE", "UPDATE")) -> dict[str, Any]:
    rule = {
        "apiGroups": [group],
        "apiVersions": ["v1"],
        "operations": list(operations),
        "resources": list(resources),
    }
    return {"resourceRules": [rule]}


async def bind(client: UntypedClient, name: str, namespace: str, spec: dict[str, Any], **binding: Any) -> None:
    """Create a policy for the objects of a namespace, and its binding."""
    match = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    made = await client.create(POLICIES, name=name, spec=spec)
    assert made["kind"] == "ValidatingAdmissionPolicy", made
    made = await client.create(
        BINDINGS,
        name=name,
        spec={"policyName": name, "matchResources": match, "validationActions": ["Deny"], **binding},
    )
    assert made["kind"] == "ValidatingAdmissionPolicyBinding", made


async def config_map(client: UntypedClient, namespace: str, name: str, **data: str) -> Any:
    document = {"metadata": {"name": name}, "data": data}
    return await client.request("POST", f"/api/v1/namespaces/{namespace}/configmaps", document)


async def test_a_bound_policy_denies_what_its_validations_reject(api_client: UntypedClient) -> None:
    await api_client.create("/api/v1/namespaces", name="denied")
    spec = {
        "matchConstraints": rules("configmaps"),
        "variables": [
            {"name": "size", "expression": "has(object.data) ? object.data.size() : 0"},
            {"name": "broken", "expression": "object.nothing"},
        ],
        "validations": [
            {"expression": "variables.size < 2", "messageExpression": "'%d entries'.format([variables.size])"},
            {"expression": "!object.metadata.name.startsWith('secret')", "reason": "Forbidden"},
            {"expression": "namespaceObject.metadata.name == 'denied' && request.operation == 'CREATE'"},
        ],
    }
    await bind(api_client, "small", "denied", spec)
    assert (await config_map(api_client, "denied", "good", a="1"))["kind"] == "ConfigMap"
    denied = await config_map(api_client, "denied", "large", a="1", b="2")
    assert (denied["code"], denied["reason"]) == (422, "Invalid")
    prefix = "ValidatingAdmissionPolicy 'small' with binding 'small' denied request: "
    assert denied["message"] == f'configmaps "large" is forbidden: {prefix}2 entries'
    forbidden = await config_map(api_client, "denied", "secret-one")
    assert (forbidden["code"], forbidden["reason"]) == (403, "Forbidden")
    text = "failed expression: !object.metadata.name.startsWith('secret')"
    assert forbidden["message"] == f'configmaps "secret-one" is forbidden: {prefix}{text}'
    await api_client.request("DELETE", f"{BINDINGS}/small")
    assert (await config_map(api_client, "denied", "large", a="1", b="2"))["kind"] == "ConfigMap"


async def test_a_failing_expression_denies_unless_failures_are_ignored(api_client: UntypedClient) -> None:
    await api_client.create("/api/v1/namespaces", name="failing")
    spec = {"matchConstraints": rules("configmaps"), "validations": [{"expression": "object.data.x == '1'"}]}
    await bind(api_client, "fails", "failing", spec)
    denied = await config_map(api_client, "failing", "empty")
    assert denied["code"] == 422
    assert "expression 'object.data.x == '1'' resulted in error: no such key: data" in denied["message"]
    policy = await api_client.request("GET", f"{POLICIES}/fails")
    policy["spec"]["failurePolicy"] = "Ignore"
    await api_client.request("PUT", f"{POLICIES}/fails", policy)
    assert (await config_map(api_client, "failing", "empty"))["kind"] == "ConfigMap"


async def test_parameters_and_the_authorizer_decide(api_client: UntypedClient) -> None:
    await api_client.create("/api/v1/namespaces", name="params")
    spec = {
        "paramKind": {"apiVersion": "v1", "kind": "Secret"},
        "matchConstraints": rules("configmaps"),
        "matchConditions": [{"name": "no-params", "expression": "object.metadata.name != 'exempt'"}],
        "validations": [
            {"expression": "object.data.limit == string(params.type)", "message": "another type"},
            {"expression": "authorizer.group('').resource('pods').namespace('params').check('create').allowed()"},
        ],
    }
    ref = {"name": "limits", "parameterNotFoundAction": "Deny"}
    await bind(api_client, "typed", "params", spec, paramRef=ref)
    missing = await config_map(api_client, "params", "one", limit="Opaque")
    assert "failed to configure binding: no params found for policy binding with `Deny`" in missing["message"]
    await api_client.request("POST", "/api/v1/namespaces/params/secrets", {"metadata": {"name": "limits"}})
    assert (await config_map(api_client, "params", "one", limit="Opaque"))["kind"] == "ConfigMap"
    assert "another type" in (await config_map(api_client, "params", "two", limit="other"))["message"]
    assert (await config_map(api_client, "params", "exempt"))["kind"] == "ConfigMap"


async def test_a_policy_that_does_not_compile_is_refused(api_client: UntypedClient) -> None:
    spec = {
        "matchConstraints": rules("configmaps"),
        "variables": [{"name": "a", "expression": "1"}],
        "validations": [{"expression": "object.x +"}, {"expression": "variables.b == 1"}, {"expression": "'text'"}],
    }
    refused = await api_client.request("POST", POLICIES, {"metadata": {"name": "wrong"}, "spec": spec})
    assert refused["code"] == 422
    for text in (
        'spec.validations[0].expression: Invalid value: "object.x +": compilation failed: ERROR: <input>:1:11: Syntax',
        "undefined field 'b'",
        "must evaluate to bool",
    ):
        assert text in refused["message"]
    refused = await api_client.request("POST", POLICIES, {"metadata": {"name": "empty"}, "spec": {}})
    assert refused["code"] == 422


async def test_an_expensive_policy_costs_its_own_requests_only(api_client: UntypedClient) -> None:
    await api_client.create("/api/v1/namespaces", name="costly")
    spec = {
        "matchConstraints": rules("configmaps"),
        "validations": [
            {"expression": "object.data.x.split('').all(a, object.data.x.split('').map(b, b + object.data.x) != [a])"}
        ],
    }
    await bind(api_client, "costly", "costly", spec)
    assert (await config_map(api_client, "costly", "small", x="a"))["kind"] == "ConfigMap"
    denied = await config_map(api_client, "costly", "large", x="a" * 100_000)
    assert denied["code"] == 422, denied
    assert "cost" in denied["message"]
    assert (await config_map(api_client, "costly", "after", x="a"))["kind"] == "ConfigMap"


async def test_a_policy_about_everything_can_be_removed_and_spares_nodes(api_client: UntypedClient) -> None:
    spec = {
        "matchConstraints": {
            "resourceRules": [
                {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]},
            ]
        },
        "validations": [{"expression": "false"}],
    }
    await api_client.create(POLICIES, name="all", spec=spec)
    await api_client.create(BINDINGS, name="all", spec={"policyName": "all", "validationActions": ["Deny"]})
    assert (await config_map(api_client, "default", "denied"))["code"] == 422
    assert (await api_client.request("DELETE", f"{BINDINGS}/all"))["status"] == "Success"
    assert (await config_map(api_client, "default", "accepted"))["kind"] == "ConfigMap"
    policy = await api_client.wait_until(f"{POLICIES}/all", lambda each: "observedGeneration" in each.get("status", {}))
    assert policy["status"]["typeChecking"] == {}


async def test_policies_decide_about_custom_resources(api_client: UntypedClient) -> None:
    group = await establish(api_client, "policies.example.org")
    await api_client.create("/api/v1/namespaces", name="lit")
    spec = {
        "matchConstraints": rules("lamps", group="policies.example.org"),
        "validations": [{"expression": "object.spec.color != 'red'"}],
    }
    await bind(api_client, "no-red", "lit", spec)
    lamps, kind = f"{group}/namespaces/lit/lamps", {"apiVersion": "policies.example.org/v1", "kind": "Lamp"}
    red = await api_client.request("POST", lamps, {**kind, "metadata": {"name": "a"}, "spec": {"color": "red"}})
    assert red["code"] == 422, red
    default = await api_client.request("POST", lamps, {**kind, "metadata": {"name": "a"}, "spec": {}})
    assert default["spec"] == {"color": "white"}


async def test_policies_decide_about_scale(api_client: UntypedClient) -> None:
    await api_client.create("/api/v1/namespaces", name="scaled")
    spec = {
        "matchConstraints": rules("replicasets/scale", group="apps"),
        "validations": [{"expression": "object.spec.replicas <= 3"}],
    }
    await bind(api_client, "few", "scaled", spec)
    sets, labels = "/apis/apps/v1/namespaces/scaled/replicasets", {"app": "x"}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    await api_client.create(sets, name="x", spec={"replicas": 0, "selector": {"matchLabels": labels}, "template": pod})
    scale = await api_client.request("GET", f"{sets}/x/scale")
    for replicas, refused in ((4, True), (1, False)):
        answer = await api_client.request("PUT", f"{sets}/x/scale", {**scale, "spec": {"replicas": replicas}})
        assert (answer.get("code") == 422) is refused, answer
