"""APIServices of this server: registered for what it has, validated, and put back."""

from __future__ import annotations

from typing import Any

import pytest

from master.controllers.api_services import local_apis
from tests.testbed.apiserver.custom_kind import establish
from tests.testbed.apiserver.untyped_client import UntypedClient

API_SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
REMOTE = {"namespace": "default", "name": "absent"}


def available(api: dict[str, Any]) -> tuple[str, str, str]:
    """Return status, reason and message of the condition Available."""
    for condition in api.get("status", {}).get("conditions", ()):
        if condition["type"] == "Available":
            return condition["status"], condition["reason"], condition["message"]
    return "", "", ""


def spec(version: str = "v1", group: str = "example.org", **changes: Any) -> dict[str, Any]:
    return {"group": group, "version": version, "groupPriorityMinimum": 2000, "versionPriority": 200, **changes}


async def test_versions_of_this_server_are_registered_and_available(api_client: UntypedClient) -> None:
    expected = set(local_apis(()))
    assert {"v1.", "v1.apps", "v1.apiregistration.k8s.io", "v2.autoscaling"} <= expected
    assert "v1beta1.metrics.k8s.io" not in expected, "whoever installs metrics-server owns that object"
    found = await api_client.wait_until(
        API_SERVICES,
        lambda listed: (
            expected <= {api["metadata"]["name"] for api in listed["items"] if available(api)[:2] == ("True", "Local")}
        ),
    )
    core = next(api for api in found["items"] if api["metadata"]["name"] == "v1.")
    assert available(core) == ("True", "Local", "Local APIServices are always available")
    assert core["spec"] == {"version": "v1", "groupPriorityMinimum": 18000, "versionPriority": 9}
    assert core["metadata"]["labels"] == {"kube-aggregator.kubernetes.io/automanaged": "onstart"}


async def test_deleted_and_changed_registration_comes_back(api_client: UntypedClient) -> None:
    before = await api_client.wait_until(f"{API_SERVICES}/v1.apps", lambda api: available(api)[0] == "True")
    await api_client.request("DELETE", f"{API_SERVICES}/v1.apps")
    back = await api_client.wait_until(f"{API_SERVICES}/v1.apps", lambda api: available(api)[0] == "True")
    assert back["metadata"]["uid"] != before["metadata"]["uid"]
    await api_client.request("PUT", f"{API_SERVICES}/v1.apps", {**back, "spec": {**back["spec"], "versionPriority": 3}})
    await api_client.wait_until(f"{API_SERVICES}/v1.apps", lambda api: api["spec"] == before["spec"])


async def test_version_of_a_custom_resource_is_registered_until_it_is_gone(api_client: UntypedClient) -> None:
    await establish(api_client, "registered.example.org")
    found = await api_client.wait_until(
        f"{API_SERVICES}/v1.registered.example.org", lambda api: available(api)[0] == "True"
    )
    assert found["metadata"]["labels"] == {"kube-aggregator.kubernetes.io/automanaged": "true"}
    assert found["spec"]["groupPriorityMinimum"] == 1000
    await api_client.request("DELETE", f"{DEFINITIONS}/lamps.registered.example.org")
    await api_client.wait_until(f"{API_SERVICES}/v1.registered.example.org", lambda api: api.get("code") == 404)


@pytest.mark.parametrize(
    ("name", "of", "field", "message"),
    [
        ("v2.example.org", spec(), "metadata.name", '`spec.version+"."+spec.group`: "v1.example.org"'),
        ("v2.", spec("v2", ""), "spec.group", "only v1 may have an empty group and it better be legacy kube"),
        ("v1.Example", spec(group="Example"), "spec.group", "a lowercase RFC 1123 subdomain"),
        ("1v.example.org", spec("1v"), "spec.version", "a DNS-1035 label"),
        ("v1.example.org", spec(groupPriorityMinimum=20001), "spec.groupPriorityMinimum", "less than 20000"),
        ("v1.example.org", spec(versionPriority=0), "spec.versionPriority", "must be positive and less than 1000"),
        ("v1.example.org", spec(caBundle="YQ=="), "spec.caBundle", "local APIServices may not have a caBundle"),
        ("v1.example.org", spec(insecureSkipTLSVerify=True), "spec.insecureSkipTLSVerify", "local APIServices may not"),
        ("v1.example.org", spec(service={"name": "a"}), "spec.service.namespace", "Required value"),
        ("v1.example.org", spec(service={"namespace": "a"}), "spec.service.name", "Required value"),
        ("v1.example.org", spec(service={**REMOTE, "port": 0}), "spec.service.port", "port is not valid"),
        ("v1.example.org", spec(service=REMOTE, caBundle="YQ==", insecureSkipTLSVerify=True),
         "spec.insecureSkipTLSVerify", "may not be true if caBundle is present"),
        ("v1.apps", spec(group="apps", service=REMOTE), "spec.service", "the group is served by this server only"),
        ("v9.podlane.io", spec("v9", "podlane.io", service=REMOTE), "spec.service", "served by this server only"),
    ],
)  # fmt: skip
async def test_invalid_registration_is_refused_with_the_words_of_kubernetes(
    api_client: UntypedClient, name: str, of: dict[str, Any], field: str, message: str
) -> None:
    refused = await api_client.request("POST", API_SERVICES, {"metadata": {"name": name}, "spec": of})
    assert refused["code"] == 422, refused
    assert f"{field}: " in refused["message"]
    assert any(message in cause for cause in refused["causes"]), refused


async def test_status_changes_only_through_its_subresource(api_client: UntypedClient) -> None:
    forged = {"conditions": [{"type": "Available", "status": "True", "reason": "Forged", "message": ""}]}
    made = await api_client.create(API_SERVICES, name="v1.example.org", spec=spec(service=REMOTE), status=forged)
    assert available(made) == ("", "", "")
    assert made["spec"]["service"] == {**REMOTE, "port": 443}
    path = f"{API_SERVICES}/v1.example.org"
    changed = {"metadata": {"labels": {"a": "b"}}, "status": {"conditions": [{"type": "Other", "status": "True"}]}}
    patched = await api_client.request("PATCH", f"{path}/status", changed)
    assert ("labels" in patched["metadata"], "Other" in str(patched["status"])) == (False, True)
    assert (await api_client.request("DELETE", path))["status"] == "Success"
