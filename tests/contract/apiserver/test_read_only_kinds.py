"""A write with a verb that a resource does not have is rejected, for every resource, and changes no object."""

from __future__ import annotations

from typing import Any

import pytest

from master.resources.resource import VERBS, AnyResource
from master.resources.scheme import SERVED
from tests.testbed.apiserver.untyped_client import UntypedClient

PODS = "/api/v1/namespaces/default/pods"
POD_ADDRESSES = "/apis/podlane.io/v1/namespaces/default/podaddresses"

METHODS = {"create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE", "deletecollection": "DELETE"}
"""The verbs that write."""

DENIED = [(resource, verb) for resource in SERVED for verb in VERBS if verb in METHODS and verb not in resource.verbs]


def collection(resource: AnyResource) -> str:
    """Return the path of the objects of a resource, in the namespace `default` if it has namespaces."""
    root = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    return f"{root}/namespaces/default/{resource.plural}" if resource.namespaced else f"{root}/{resource.plural}"


def document(resource: AnyResource, name: str, **metadata: Any) -> dict[str, Any]:
    """Return an object with a name and nothing else."""
    return {
        "apiVersion": resource.type.API_VERSION,
        "kind": resource.type.KIND,
        "metadata": {"name": name, **metadata},
    }


def constant_fields(pod: dict[str, Any]) -> list[Any]:
    """Return the fields of a pod on no node that no controller changes."""
    return [pod["spec"], *(pod["metadata"].get(field) for field in ("uid", "labels", "deletionTimestamp"))]


@pytest.mark.parametrize(
    ("resource", "verb"), DENIED, ids=lambda value: value if isinstance(value, str) else value.plural
)
async def test_write_with_a_verb_that_the_resource_lacks_is_rejected(
    api_client: UntypedClient, resource: AnyResource, verb: str
) -> None:
    """Nothing of that name exists. Kinds that are listed empty have no such object, therefore 404."""
    with_name = verb in ("update", "patch", "delete")
    path = collection(resource) + ("/absent" if with_name else "")
    answer = await api_client.request(METHODS[verb], path, document(resource, "absent") if "delete" not in verb else {})
    assert answer["code"] == (404 if with_name and resource.listed_empty else 405), answer


@pytest.mark.parametrize("verb", METHODS)
async def test_pod_address_cannot_be_written_and_its_pod_stays(api_client: UntypedClient, verb: str) -> None:
    """A PodAddress is a projection of a Pod: a write of it would be a write of the pod."""
    name = f"p-{verb}"
    pod = await api_client.create(PODS, name=name, spec={"containers": [{"name": "c", "image": "i"}]})
    path = POD_ADDRESSES if verb in ("create", "deletecollection") else f"{POD_ADDRESSES}/{name}"
    address = await api_client.request("GET", f"{POD_ADDRESSES}/{name}")
    assert address["kind"] == "PodAddress"
    change = {**address, "metadata": {**address["metadata"], "labels": {"a": "b"}}}
    body = {"update": change, "patch": {"metadata": {"labels": {"a": "b"}}}}.get(verb, {})
    if verb == "create":
        body = {key: value for key, value in change.items() if key != "metadata"} | {"metadata": {"name": f"{name}-2"}}
    answer = await api_client.request(METHODS[verb], path, body)
    assert answer["code"] == 405, answer
    if verb == "create":
        assert answer["message"].endswith("a PodAddress is a projection of a Pod: write the pod")
    assert constant_fields(await api_client.request("GET", f"{PODS}/{name}")) == constant_fields(pod)

    written = await api_client.request("PATCH", f"{PODS}/{name}", {"metadata": {"labels": {"a": "b"}}})
    assert constant_fields(written) == [pod["spec"], pod["metadata"]["uid"], {"a": "b"}, None], (
        "the pod itself can be written"
    )


async def test_pod_address_cannot_be_applied(api_client: UntypedClient) -> None:
    pod = await api_client.create(PODS, name="applied", spec={"containers": [{"name": "c", "image": "i"}]})
    for name in ("applied", "absent"):
        body = {"apiVersion": "podlane.io/v1", "kind": "PodAddress", "metadata": {"name": name}, "ip": "10.128.0.9"}
        answer = await api_client.apply(f"{POD_ADDRESSES}/{name}", body)
        assert answer["code"] == 405, answer
    assert constant_fields(await api_client.request("GET", f"{PODS}/applied")) == constant_fields(pod)
    assert (await api_client.request("GET", f"{PODS}/absent"))["code"] == 404
