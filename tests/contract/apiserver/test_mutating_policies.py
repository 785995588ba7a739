"""MutatingAdmissionPolicies against a real master: what clients see of bound policies."""

from __future__ import annotations

from typing import Any

from tests.testbed.apiserver.custom_kind import establish
from tests.testbed.apiserver.untyped_client import UntypedClient

GROUP = "/apis/admissionregistration.k8s.io/v1"
POLICIES, BINDINGS = f"{GROUP}/mutatingadmissionpolicies", f"{GROUP}/mutatingadmissionpolicybindings"


def rules(*resources: str, group: str = "", operations: tuple[str, ...] = ("CREATE", "UPDATE")) -> dict[str, Any]:
    rule = {"apiGroups": [group], "apiVersions": ["v1"], "operations": list(operations), "resources": list(resources)}
    return {"resourceRules": [rule]}


def configuration(expression: str) -> dict[str, Any]:
    return {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}


def json_patch(expression: str) -> dict[str, Any]:
    return {"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}


def spec(match: dict[str, Any], *mutations: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"matchConstraints": match, "mutations": list(mutations), "reinvocationPolicy": "Never", **more}


async def bind(client: UntypedClient, name: str, namespace: str, policy: dict[str, Any], **binding: Any) -> None:
    """Create a policy for the objects of a namespace, and its binding."""
    match = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    made = await client.create(POLICIES, name=name, spec=policy)
    assert made["kind"] == "MutatingAdmissionPolicy", made
    made = await client.create(BINDINGS, name=name, spec={"policyName": name, "matchResources": match, **binding})
    assert made["kind"] == "MutatingAdmissionPolicyBinding", made


async def config_map(client: UntypedClient, namespace: str, name: str, **data: str) -> Any:
    document = {"metadata": {"name": name}, "data": data}
    return await client.request("POST", f"/api/v1/namespaces/{namespace}/configmaps", document)


async def labels_after(client: UntypedClient, namespace: str, name: str) -> Any:
    made = await config_map(client, namespace, name)
    assert made["kind"] == "ConfigMap", made
    return made["metadata"].get("labels")


def deployment(name: str) -> dict[str, Any]:
    pod = {
        "metadata": {"labels": {"app": "test"}},
        "spec": {"containers": [{"name": "nginx", "image": "nginx:latest"}]},
    }
    template = {"replicas": 2, "selector": {"matchLabels": {"app": "test"}}, "template": pod}
    return {"metadata": {"name": name}, "spec": template}


ANNOTATE = configuration('Object{metadata: Object.metadata{annotations: {"mutated-by": "admission-policy"}}}')


async def test_a_policy_changes_a_deployment_at_create_and_update(api_client: UntypedClient) -> None:
    await api_client.create("/api/v1/namespaces", name="mutated")
    deployments = "/apis/apps/v1/namespaces/mutated/deployments"
    made = await api_client.request("POST", deployments, deployment("before"))
    assert "annotations" not in made["metadata"]
    sidecar = configuration(
        """Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{
            containers: [Object.spec.template.spec.containers{
                name: "sidecar", image: object.spec.template.spec.containers[0].image
            }],
            initContainers: object.spec.template.spec.containers.map(c, Object.spec.template.spec.initContainers{
                name: "init-" + c.name, image: c.image
            })
        }}}}"""
    )
    await bind(api_client, "annotate", "mutated", spec(rules("deployments", group="apps"), ANNOTATE, sidecar))
    made = await api_client.request("POST", deployments, deployment("test-deployment"))
    assert made["metadata"]["annotations"]["mutated-by"] == "admission-policy", made
    pod = made["spec"]["template"]["spec"]
    assert [(each["name"], each["image"]) for each in pod["containers"]] == [
        ("nginx", "nginx:latest"),
        ("sidecar", "nginx:latest"),
    ]
    assert [each["name"] for each in pod["initContainers"]] == ["init-nginx"]
    assert pod["containers"][1]["imagePullPolicy"] == "Always", "defaults are set after a mutation"
    patched = await api_client.request("PATCH", f"{deployments}/before", {"spec": {"replicas": 1}})
    assert patched["metadata"]["annotations"]["mutated-by"] == "admission-policy"
    head = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "applied"}}
    applied = await api_client.apply(f"{deployments}/applied", {**head, "spec": deployment("applied")["spec"]})
    assert applied["metadata"]["annotations"]["mutated-by"] == "admission-policy", applied
    owned = [entry["fieldsV1"] for entry in applied["metadata"]["managedFields"] if entry["manager"] == "test"]
    assert "f:annotations" not in owned[0].get("f:metadata", {}), "nobody manages what a policy has set"
    assert (await api_client.request("DELETE", f"{BINDINGS}/annotate"))["status"] == "Success"
    made = await api_client.request("POST", deployments, deployment("after"))
    assert "annotations" not in made["metadata"], "a policy without a binding does nothing"


async def test_a_json_patch_uses_variables_and_escapes_keys(api_client: UntypedClient) -> None:
    await api_client.create("/api/v1/namespaces", name="patched")
    patch = json_patch(
        """(has(object.metadata.labels) ? [] : [JSONPatch{op: "add", path: "/metadata/labels", value: {}}]) + [
            JSONPatch{op: "test", path: "/data/n", value: "1"},
            JSONPatch{
                op: "add", path: "/metadata/labels/" + jsonpatch.escapeKey("example.org/a~b"), value: variables.v
            },
            JSONPatch{op: "copy", from: "/data/n", path: "/data/copied"},
            JSONPatch{op: "replace", path: "/data/absent", value: "set"}
        ]"""
    )
    second = json_patch("[JSONPatch{op: 'move', from: '/data/n', path: '/data/' + object.data.copied}]")
    policy = spec(
        rules("configmaps"),
        patch,
        second,
        variables=[{"name": "v", "expression": "request.operation + namespaceObject.metadata.name"}],
    )
    policy["matchConditions"] = [{"name": "some", "expression": "object.metadata.name != 'exempt'"}]
    # Labels of this form are no labels of Kubernetes: the object is validated after the policies.
    await bind(api_client, "patch", "patched", policy)
    refused = await config_map(api_client, "patched", "one", n="1")
    assert (refused["code"], "example.org/a~b" in refused["message"]) == (422, True), refused
    policy["mutations"][0] = json_patch(patch["jsonPatch"]["expression"].replace("a~b", "a"))
    stored = await api_client.request("GET", f"{POLICIES}/patch")
    await api_client.request("PUT", f"{POLICIES}/patch", {**stored, "spec": policy})
    made = await config_map(api_client, "patched", "one", n="1")
    assert made["metadata"]["labels"] == {"example.org/a": "CREATEpatched"}, made
    assert made["data"] == {"copied": "1", "absent": "set", "1": "1"}
    other = await config_map(api_client, "patched", "two", n="2", copied="3")
    assert other["data"] == {"3": "2", "copied": "3"}, "a failed test leaves out the whole patch, and only that"
    assert (await config_map(api_client, "patched", "exempt", n="1"))["data"] == {"n": "1"}


async def test_parameters_give_values_and_their_absence_is_decided_by_the_binding(api_client: UntypedClient) -> None:
    await api_client.create("/api/v1/namespaces", name="valued")
    policy = spec(
        rules("configmaps"),
        configuration("Object{metadata: Object.metadata{labels: {params.metadata.name: string(params.type)}}}"),
        paramKind={"apiVersion": "v1", "kind": "Secret"},
    )
    ref = {"selector": {"matchLabels": {"param": "yes"}}, "parameterNotFoundAction": "Deny"}
    await bind(api_client, "valued", "valued", policy, paramRef=ref)
    missing = await config_map(api_client, "valued", "one")
    assert (missing["code"], missing["reason"], missing["message"]) == (
        403,
        "Forbidden",
        "policy 'valued' with binding 'valued' denied request: failed to configure binding: "
        "no params found for policy binding with `Deny` parameterNotFoundAction",
    )
    for name in ("first", "second"):
        secret = {"metadata": {"name": name, "labels": {"param": "yes"}}, "type": "x"}
        await api_client.request("POST", "/api/v1/namespaces/valued/secrets", secret)
    assert await labels_after(api_client, "valued", "one") == {"first": "x", "second": "x"}
    binding = await api_client.request("GET", f"{BINDINGS}/valued")
    binding["spec"]["paramRef"] = {"name": "third", "parameterNotFoundAction": "Allow"}
    await api_client.request("PUT", f"{BINDINGS}/valued", binding)
    assert await labels_after(api_client, "valued", "two") is None


async def test_a_failing_policy_denies_in_kubernetes_words_unless_failures_are_ignored(
    api_client: UntypedClient,
) -> None:
    await api_client.create("/api/v1/namespaces", name="failing-map")
    good = configuration("Object{metadata: Object.metadata{labels: {'good': 'yes'}}}")
    prefix = "policy 'fails' with binding 'fails' denied request: "
    patch_failed = "error applying patch: failed to convert patch object to typed object: "
    cases = (
        (configuration("Object{data: object.nothing}"),
         "expression 'Object{data: object.nothing}' resulted in error: no such key: nothing"),
        (configuration("Object{metadata: Object.meta{}}"),
         'type mismatch: unexpected type name "Object.meta", expected "Object.metadata", '
         "which matches field name path from root Object type"),
        (configuration("Object{metadata: Object.metadata{labelsx: {'a': 'b'}}}"),
         f"{patch_failed}.metadata.labelsx: field not declared in schema"),
        (configuration("Object{metadata: Object.metadata{ownerReferences: [Object.metadata.ownerReferences{}]}}"),
         f"{patch_failed}.metadata.ownerReferences: element 0: associative list with keys has an element that omits "
         'key field "uid" (and doesn\'t have default value)'),
        (json_patch("[JSONPatch{op: 'remove', path: '/data/x'}]"),
         "JSONPath: operation 0 (remove /data/x): there is no such place"),
    )  # fmt: skip
    await bind(api_client, "fails", "failing-map", spec(rules("configmaps"), good))
    for number, (mutation, message) in enumerate(cases):
        for policy, name in (("Fail", f"f{number}"), ("Ignore", f"i{number}")):
            stored = await api_client.request("GET", f"{POLICIES}/fails")
            changed = {**stored["spec"], "mutations": [mutation, good], "failurePolicy": policy}
            await api_client.request("PUT", f"{POLICIES}/fails", {**stored, "spec": changed})
            answer = await config_map(api_client, "failing-map", name)
            if policy == "Fail":
                assert answer["kind"] == "Status", answer
                assert (answer["code"], answer["reason"], answer["message"]) == (403, "Invalid", prefix + message)
                assert answer["causes"] == [prefix + message]
            else:
                assert answer["metadata"]["labels"] == {"good": "yes"}, "the other mutations are made"


async def test_an_atomic_part_cannot_be_named(api_client: UntypedClient) -> None:
    await api_client.create("/api/v1/namespaces", name="atomic")
    atomic = configuration("Object{spec: Object.spec{selector: Object.spec.selector{matchLabels: {'l': 'v'}}}}")
    await bind(api_client, "atomic", "atomic", spec(rules("deployments", group="apps"), atomic))
    deployments = "/apis/apps/v1/namespaces/atomic/deployments"
    refused = await api_client.request("POST", deployments, deployment("one"))
    assert refused["message"] == (
        "policy 'atomic' with binding 'atomic' denied request: error applying patch: invalid ApplyConfiguration: "
        "may not mutate atomic arrays, maps or structs: .spec.selector"
    )


async def test_what_is_no_policy_is_refused_in_kubernetes_words(api_client: UntypedClient) -> None:
    refused = await api_client.request("POST", POLICIES, {"metadata": {"name": "none"}, "spec": {}})
    assert refused["code"] == 422
    for cause in (
        "spec.matchConstraints: Required value",
        "spec.mutations: Required value: mutations must contain at least one item",
        "spec.reinvocationPolicy: Required value",
    ):
        assert cause in refused["message"], refused
    wrong = {
        "matchConstraints": rules("configmaps", operations=("DELETE",)),
        "mutations": [
            {"patchType": "other"},
            {"patchType": "JSONPatch", "applyConfiguration": {"expression": "Object{}"}},
            configuration(" "),
            {"applyConfiguration": {"expression": "Object{}"}},
        ],
        "failurePolicy": "other",
        "reinvocationPolicy": "other",
    }
    refused = await api_client.request("POST", POLICIES, {"metadata": {"name": "none"}, "spec": wrong})
    assert refused["code"] == 422
    for cause in (
        'spec.failurePolicy: Unsupported value: "other": supported values: "Fail", "Ignore"',
        'spec.matchConstraints.resourceRules.operations: Unsupported value: "DELETE": '
        'supported values: "*", "CONNECT", "CREATE", "UPDATE"',
        'spec.mutations[0].patchType: Unsupported value: "other": supported values: "ApplyConfiguration", "JSONPatch"',
        'spec.mutations[1].applyConfiguration: Invalid value: "{applyConfiguration}": '
        "must not be specified when patchType is JSONPatch",
        "spec.mutations[1].jsonPatch: Required value: must be specified when patchType is JSONPatch",
        "spec.mutations[2].applyConfiguration.expression: Required value",
        "spec.mutations[3].patchType: Required value",
        'spec.reinvocationPolicy: Unsupported value: "other": supported values: "IfNeeded", "Never"',
    ):
        assert cause in refused["message"], refused
    uncompiled = spec(
        rules("configmaps"),
        configuration("'teapot'"),
        json_patch("[Object{}]"),
        configuration("Object{a: }"),
        variables=[{"name": "v", "expression": "Object{}"}],
        matchConditions=[{"name": "c", "expression": "Object{}.a"}],
    )
    refused = await api_client.request("POST", POLICIES, {"metadata": {"name": "none"}, "spec": uncompiled})
    assert refused["code"] == 422
    for cause in (
        "must evaluate to Object but got string",
        "must evaluate to list(JSONPatch) but got list(Object)",
        'spec.mutations[2].applyConfiguration.expression: Invalid value: "Object{a: }": compilation failed',
        'spec.variables[0].expression: Invalid value: "Object{}": compilation failed',
        'spec.matchConditions[0].expression: Invalid value: "Object{}.a": compilation failed',
    ):
        assert cause in refused["message"], refused
    binding = {"metadata": {"name": "none"}, "spec": {"matchResources": rules("configmaps", operations=("DELETE",))}}
    refused = await api_client.request("POST", BINDINGS, binding)
    assert "spec.policyName: Required value" in refused["message"]
    assert 'spec.matchResources.resourceRules.operations: Unsupported value: "DELETE"' in refused["message"]


async def test_the_api_of_policies_and_bindings_is_whole(api_client: UntypedClient) -> None:
    served = await api_client.request("GET", GROUP)
    verbs = {each["name"]: sorted(each["verbs"]) for each in served["resources"]}
    all_verbs = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
    assert verbs["mutatingadmissionpolicies"] == verbs["mutatingadmissionpolicybindings"] == all_verbs
    assert "mutatingadmissionpolicies/status" not in verbs
    for path, document in ((POLICIES, spec(rules("others", group="x.y"), ANNOTATE)), (BINDINGS, {"policyName": "x"})):
        made = []
        for _ in range(3):
            metadata = {"generateName": "e2e-", "labels": {"e2e": "map"}}
            made.append(await api_client.request("POST", path, {"metadata": metadata, "spec": document}))
            assert made[-1]["kind"] != "Status", made
        name = made[0]["metadata"]["name"]
        patched = await api_client.request(
            "PATCH", f"{path}/{name}", {"metadata": {"annotations": {"patched": "true"}}}
        )
        assert patched["metadata"]["annotations"] == {"patched": "true"}
        patched["metadata"]["annotations"]["updated"] = "true"
        updated = await api_client.request("PUT", f"{path}/{name}", patched)
        assert updated["metadata"]["annotations"]["updated"] == "true"
        assert (await api_client.request("DELETE", f"{path}/{name}"))["status"] == "Success"
        listed = await api_client.request("GET", path, labelSelector="e2e=map")
        assert len(listed["items"]) == 2
        await api_client.request("DELETE", path, labelSelector="e2e=map")
        assert (await api_client.request("GET", path, labelSelector="e2e=map"))["items"] == []
    assert made[0]["spec"] == {"policyName": "x"}


async def test_policies_are_ordered_and_evaluated_again_after_a_change_if_they_ask(api_client: UntypedClient) -> None:
    await api_client.create("/api/v1/namespaces", name="again")
    count = configuration(
        "Object{data: {'NAME': string(int(object.?data[?'NAME'].orValue('0')) + 1),"
        " 'order': object.?data.order.orValue('') + 'NAME'}}"
    )

    def counting(name: str, reinvocation: str) -> dict[str, Any]:
        expression = count["applyConfiguration"]["expression"].replace("NAME", name)
        policy = spec(rules("configmaps"), configuration(expression))
        return {**policy, "reinvocationPolicy": reinvocation}

    for name, reinvocation in (("b", "Never"), ("a", "IfNeeded"), ("c", "IfNeeded")):
        await bind(api_client, f"again-{name}", "again", counting(name, reinvocation))
    made = await config_map(api_client, "again", "one")
    assert made["data"] == {"a": "2", "b": "1", "c": "2", "order": "abcac"}, made


async def test_identity_and_foreign_parts_cannot_be_changed(api_client: UntypedClient) -> None:
    await api_client.create("/api/v1/namespaces", name="identity")
    mutations = {
        "metadata.name": json_patch("[JSONPatch{op: 'replace', path: '/metadata/name', value: 'other'}]"),
        "metadata.namespace": configuration("Object{metadata: Object.metadata{namespace: 'default'}}"),
        "metadata.uid": configuration("Object{metadata: Object.metadata{uid: 'x'}}"),
    }
    await bind(api_client, "identity", "identity", spec(rules("configmaps"), ANNOTATE))
    for path, mutation in mutations.items():
        stored = await api_client.request("GET", f"{POLICIES}/identity")
        changed = {**stored["spec"], "mutations": [mutation], "failurePolicy": "Ignore"}
        await api_client.request("PUT", f"{POLICIES}/identity", {**stored, "spec": changed})
        refused = await config_map(api_client, "identity", "one")
        assert (refused["code"], path in refused["message"]) == (422, True), refused
        assert 'policy "identity" may not change it' in refused["message"]
    kinds = (
        json_patch("[JSONPatch{op: 'replace', path: '/kind', value: 'Secret'}]"),
        json_patch("[JSONPatch{op: 'add', path: '/spec', value: {'a': 1}}]"),
        json_patch("[JSONPatch{op: 'replace', path: '', value: 1}]"),
    )
    for mutation, message in zip(
        kinds, ("another apiVersion or kind", 'strict decoding error: unknown field "spec"', "is 1"), strict=True
    ):
        stored = await api_client.request("GET", f"{POLICIES}/identity")
        await api_client.request(
            "PUT", f"{POLICIES}/identity", {**stored, "spec": {**stored["spec"], "mutations": [mutation]}}
        )
        refused = await config_map(api_client, "identity", "one")
        assert (refused["code"], message in refused["message"]) == (500, True), refused
    server_set = configuration("Object{kind: 'Secret', metadata: Object.metadata{generation: 7, labels: {'a': 'b'}}}")
    stored = await api_client.request("GET", f"{POLICIES}/identity")
    changed = {**stored["spec"], "mutations": [server_set]}
    await api_client.request("PUT", f"{POLICIES}/identity", {**stored, "spec": changed})
    made = await config_map(api_client, "identity", "one")
    assert (made["kind"], made["metadata"]["labels"], made["metadata"].get("generation")) == (
        "ConfigMap",
        {"a": "b"},
        None,
    )


async def test_a_status_policy_changes_the_status_only(api_client: UntypedClient) -> None:
    await api_client.create("/api/v1/namespaces", name="parts")
    mutation = configuration(
        "Object{status: Object.status{phase: 'Failed', reason: 'policy'},"
        " metadata: Object.metadata{labels: {'a': 'b'}}, spec: Object.spec{activeDeadlineSeconds: 5}}"
    )
    await bind(api_client, "parts", "parts", spec(rules("pods/status"), mutation))
    pods, pod = "/api/v1/namespaces/parts/pods", {"containers": [{"name": "c", "image": "i"}]}
    made = await api_client.request("POST", pods, {"metadata": {"name": "one"}, "spec": pod})
    assert made["status"].get("reason") is None, "the rule is about the subresource"
    changed = await api_client.request("PATCH", f"{pods}/one/status", {"status": {"message": "changed"}})
    assert changed["kind"] == "Pod", changed
    assert (changed["status"]["phase"], changed["status"]["reason"]) == ("Failed", "policy"), changed
    assert "activeDeadlineSeconds" not in changed["spec"]


async def test_policies_change_custom_resources_by_their_schema(api_client: UntypedClient) -> None:
    group = await establish(api_client, "mutating.example.org")
    await api_client.create("/api/v1/namespaces", name="lamps")
    policy = spec(
        rules("lamps", group="mutating.example.org"), configuration("Object{spec: Object.spec{color: 'blue'}}")
    )
    await bind(api_client, "blue", "lamps", policy)
    lamps, kind = f"{group}/namespaces/lamps/lamps", {"apiVersion": "mutating.example.org/v1", "kind": "Lamp"}
    made = await api_client.request("POST", lamps, {**kind, "metadata": {"name": "a"}, "spec": {}})
    assert made["spec"] == {"color": "blue"}, made
    stored = await api_client.request("GET", f"{POLICIES}/blue")
    stored["spec"]["mutations"] = [configuration("Object{spec: Object.spec{colour: 'blue'}}")]
    await api_client.request("PUT", f"{POLICIES}/blue", stored)
    refused = await api_client.request("POST", lamps, {**kind, "metadata": {"name": "b"}, "spec": {}})
    assert refused["message"].endswith(".spec.colour: field not declared in schema"), refused


async def test_parameters_may_be_custom_resources(api_client: UntypedClient) -> None:
    group = await establish(api_client, "parameters.example.org")
    await api_client.create("/api/v1/namespaces", name="lit-params")
    policy = spec(
        rules("configmaps"),
        configuration("Object{metadata: Object.metadata{labels: {'color': params.spec.color}}}"),
        paramKind={"apiVersion": "parameters.example.org/v1", "kind": "Lamp"},
    )
    ref = {"name": "lamp", "parameterNotFoundAction": "Deny"}
    await bind(api_client, "lit-params", "lit-params", policy, paramRef=ref)
    assert (await config_map(api_client, "lit-params", "one"))["code"] == 403
    kind = {"apiVersion": "parameters.example.org/v1", "kind": "Lamp"}
    lamp = {**kind, "metadata": {"name": "lamp"}, "spec": {"color": "blue"}}
    made = await api_client.request("POST", f"{group}/namespaces/lit-params/lamps", lamp)
    assert made["kind"] == "Lamp", made
    assert await labels_after(api_client, "lit-params", "one") == {"color": "blue"}


async def test_another_version_is_changed_as_the_one_that_a_rule_names(api_client: UntypedClient) -> None:
    await api_client.create("/api/v1/namespaces", name="versions")
    match = rules("horizontalpodautoscalers", group="autoscaling")
    match["resourceRules"][0]["apiVersions"] = ["v2"]
    replicas = "object.spec.metrics[0].resource.target.averageUtilization == 50 ? 3 : 1"
    policy = spec(
        match,
        json_patch(
            "[JSONPatch{op: 'add', path: '/metadata/labels', value: {'version': object.apiVersion == 'autoscaling/v2' ?"
            " 'v2' : 'other'}}]"
        ),
        configuration(f"Object{{spec: Object.spec{{minReplicas: {replicas}}}}}"),
    )
    await bind(api_client, "versions", "versions", policy)
    target = {"kind": "Deployment", "name": "x", "apiVersion": "apps/v1"}
    document = {"maxReplicas": 9, "scaleTargetRef": target, "targetCPUUtilizationPercentage": 50}
    made = await api_client.create(
        "/apis/autoscaling/v1/namespaces/versions/horizontalpodautoscalers", name="one", spec=document
    )
    assert made["apiVersion"] == "autoscaling/v1"
    assert (made["spec"]["minReplicas"], made["metadata"]["labels"]) == (3, {"version": "v2"})
    policy["matchConstraints"]["matchPolicy"] = "Exact"
    stored = await api_client.request("GET", f"{POLICIES}/versions")
    await api_client.request("PUT", f"{POLICIES}/versions", {**stored, "spec": policy})
    exact = await api_client.create(
        "/apis/autoscaling/v1/namespaces/versions/horizontalpodautoscalers", name="two", spec=document
    )
    assert "labels" not in exact["metadata"]


async def test_pods_that_controllers_create_and_projects_are_changed_too(api_client: UntypedClient) -> None:
    await api_client.create("/api/v1/namespaces", name="controlled")
    label = configuration("Object{metadata: Object.metadata{labels: {'by': request.userInfo.username.split(':')[1]}}}")
    await bind(api_client, "controlled", "controlled", spec(rules("pods"), label))
    made = await api_client.request("POST", "/apis/apps/v1/namespaces/controlled/deployments", deployment("web"))
    assert made["kind"] == "Deployment", made
    pods = await api_client.wait_until(
        "/api/v1/namespaces/controlled/pods", lambda found: len(found.get("items", [])) == 2
    )
    assert {pod["metadata"]["labels"]["by"] for pod in pods["items"]} == {"kube-controller-manager"}
    note = configuration("Object{metadata: Object.metadata{annotations: {'seen-as': object.kind}}}")
    policy = spec(rules("namespaces"), note, matchConditions=[{"name": "n", "expression": "request.name == 'noted'"}])
    await api_client.create(POLICIES, name="noted", spec=policy)
    await api_client.create(BINDINGS, name="noted", spec={"policyName": "noted"})
    project = await api_client.create("/apis/project.openshift.io/v1/projects", name="noted")
    assert (project["kind"], project["metadata"]["annotations"]["seen-as"]) == ("Project", "Namespace")


async def test_dry_run_and_exempt_kinds(api_client: UntypedClient) -> None:
    everything = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}
    label = configuration("Object{metadata: Object.metadata{labels: {'everything': 'yes'}}}")
    await api_client.create(POLICIES, name="everything", spec=spec({"resourceRules": [everything]}, label))
    await api_client.create(BINDINGS, name="everything", spec={"policyName": "everything"})
    configs, document = "/api/v1/namespaces/default/configmaps", {"metadata": {"name": "dry"}}
    made = await api_client.request("POST", configs, document, dryRun="All")
    assert made["metadata"]["labels"] == {"everything": "yes"}
    assert (await api_client.request("GET", f"{configs}/dry"))["code"] == 404
    binding = await api_client.create(BINDINGS, name="exempt", spec={"policyName": "nothing"})
    assert "labels" not in binding["metadata"]
    stored = await api_client.request("GET", f"{POLICIES}/everything")
    stored["spec"]["mutations"] = [configuration("Object{nothing: object.nothing}")]
    await api_client.request("PUT", f"{POLICIES}/everything", stored)
    assert (await api_client.request("POST", configs, document))["code"] == 403
    assert (await api_client.request("DELETE", f"{BINDINGS}/everything"))["status"] == "Success"
    assert (await api_client.request("POST", configs, document))["kind"] == "ConfigMap"


async def test_hostile_policies_cost_their_own_requests_only(api_client: UntypedClient) -> None:
    await api_client.create("/api/v1/namespaces", name="hostile")
    await api_client.create("/api/v1/namespaces", name="bystander")
    doubled = json_patch(
        "[JSONPatch{op: 'add', path: '/data/a', value: 'x'}] + object.data.x.split('').map(i,"
        " JSONPatch{op: 'copy', from: '/data', path: '/data/' + i})"
    )
    mutations = (
        (configuration(f"Object{{data: {{'a': [object.data.x]{'.map(a, a + a)' * 25}[0]}}}}"), 403, "cost"),
        (configuration("Object{data: object.data.x.split('').map(a, {'a': object.data.x})[0]}"), 403, "cost"),
        (json_patch("object.data.x.split('').map(a, JSONPatch{op: 'add', path: '/data/a', value: object.data.x})"),
         403, ""),
        (doubled, 403, ""),
        (configuration("Object{data: {'a': 1}}"), 403, ".data[a]: is 1; a string is accepted"),
        (json_patch("[JSONPatch{op: 'add', path: '/data/a', value: 1}]"), 500, "cannot be decoded"),
        (json_patch("[JSONPatch{op: '\\n', path: '\\n'}]"), 403, "is not a JSON pointer"),
    )  # fmt: skip
    await bind(api_client, "hostile", "hostile", spec(rules("configmaps"), ANNOTATE))
    assert (await config_map(api_client, "hostile", "control", x="a"))["metadata"]["annotations"]
    for number, (mutation, code, message) in enumerate(mutations):
        stored = await api_client.request("GET", f"{POLICIES}/hostile")
        stored["spec"]["mutations"] = [mutation]
        changed = await api_client.request("PUT", f"{POLICIES}/hostile", stored)
        assert changed["kind"] == "MutatingAdmissionPolicy", changed
        answer = await config_map(api_client, "hostile", f"h{number}", x="abcdefgh" * 1000)
        assert answer.get("code", 0) == code, (number, answer)
        assert message in answer.get("message", "")
        assert (await config_map(api_client, "bystander", f"b{number}"))["kind"] == "ConfigMap"
