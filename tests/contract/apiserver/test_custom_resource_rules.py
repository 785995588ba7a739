"""Rules in CEL of custom resources (x-kubernetes-validations) against a real master."""

from __future__ import annotations

from typing import Any

from tests.testbed.apiserver.custom_kind import DEFINITIONS, definition, establish
from tests.testbed.apiserver.untyped_client import UntypedClient

GROUP = "rules.example.org"
FEW = {"rule": "!has(self.replicas) || self.replicas <= 3", "message": "at most three"}
FIXED = {"rule": "self.color == oldSelf.color", "message": "the color stays"}


def lamp(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": f"{GROUP}/v1", "kind": "Lamp", "metadata": {"name": name}, "spec": spec}


async def test_objects_and_their_changes_are_held_to_the_rules(api_client: UntypedClient) -> None:
    await api_client.create("/api/v1/namespaces", name="ruled")
    lamps = f"{await establish(api_client, GROUP, FEW, FIXED)}/namespaces/ruled/lamps"
    many = await api_client.request("POST", lamps, lamp("a", replicas=4))
    assert (many["code"], many["message"]) == (
        422,
        'Lamp "a" is invalid: spec: Invalid value: at most three',
    )
    one = await api_client.request("POST", lamps, lamp("a", replicas=1))
    assert one["spec"] == {"color": "white", "replicas": 1}
    # A transition rule compares with the stored object, and with its default.
    red = await api_client.request("PUT", f"{lamps}/a", {**one, "spec": {"color": "red", "replicas": 1}})
    assert red["code"] == 422, red
    assert "the color stays" in red["message"]
    two = await api_client.request("PUT", f"{lamps}/a", {**one, "spec": {"color": "white", "replicas": 2}})
    assert two["spec"]["replicas"] == 2
    scale = await api_client.request("GET", f"{lamps}/a/scale")
    for replicas, refused in ((4, True), (3, False)):
        answer = await api_client.request("PUT", f"{lamps}/a/scale", {**scale, "spec": {"replicas": replicas}})
        assert (answer.get("code") == 422) is refused, answer
        scale = await api_client.request("GET", f"{lamps}/a/scale")
    # The status is written beside the stored spec, whatever the spec of the request says.
    stored = await api_client.request("GET", f"{lamps}/a")
    document = {**stored, "spec": {"color": "red", "replicas": 9}, "status": {"replicas": 5}}
    answer = await api_client.request("PUT", f"{lamps}/a/status", document)
    assert (answer["spec"]["replicas"], answer["status"]) == (3, {"replicas": 5})


async def test_definitions_with_rules_that_do_not_compile_are_refused(api_client: UntypedClient) -> None:
    wrong = definition("broken.example.org", {"rule": "self.colour == 'red'"})
    refused = await api_client.request("POST", DEFINITIONS, wrong)
    assert refused["code"] == 422, refused
    path = "spec.versions[0].schema.openAPIV3Schema.properties[spec].x-kubernetes-validations[0].rule"
    assert f"{path}: Invalid value: " in refused["message"]
    assert "compilation failed: ERROR: <input>:1:5: undefined field 'colour'" in refused["message"]
    accepted = await api_client.request(
        "POST", DEFINITIONS, definition("whole.example.org", {"rule": "self.color == 'red'"})
    )
    assert accepted["kind"] == "CustomResourceDefinition"
