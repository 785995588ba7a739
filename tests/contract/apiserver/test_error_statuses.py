"""Error statuses equal those recorded from kube-apiserver 1.36 word for word, because clients match on them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPSConnection
from typing import Any

import pytest

from api.client.kubeconfig import Kubeconfig
from tests.testbed.apiserver.process import ApiServer

JSON, MERGE, APPLY = "application/json", "application/merge-patch+json", "application/apply-patch+yaml"
MAPS = "/api/v1/namespaces/pr/configmaps"
BAD_NAME = (
    'Invalid value: "Bad_Name": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '
    "'-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation "
    "is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
MODIFIED = (
    'Operation cannot be fulfilled on configmaps "c1": the object has been modified; please apply your changes to the '
    "latest version and try again"
)
EXACTLY_ANY = 'Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
NOT_FOR_LISTS = "Forbidden: sendInitialEvents is forbidden for list"
ONLY_ALL = 'Unsupported value: ["Some"]: supported values: "All"'
NOT_BOTH = 'Invalid value: "Background": orphanDependents and deletionPropagation cannot be both set'
ONCE_SET = 'Invalid value: ["172.30.0.99"]: may not change once set'
POD_UPDATES = (
    "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing "
    "tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


@dataclass(frozen=True)
class Refusal:
    """A request and the expected error. `differs` states the differences from the recorded message, and the reason."""

    request: tuple[str, str, str | None, object]
    code: int
    reason: str
    message: str
    details: dict[str, Any] | None
    differs: str = ""


def about(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "kind": "configmaps", **more}


def cause(reason: str, field: str, message: str) -> dict[str, str]:
    return {"reason": reason, "message": message, "field": field}


REFUSALS = {
    "a name that is taken": Refusal(
        ("POST", MAPS, JSON, {"metadata": {"name": "c1"}}),
        *(409, "AlreadyExists", 'configmaps "c1" already exists', about("c1")),
    ),
    "an older version": Refusal(
        ("PUT", f"{MAPS}/c1", JSON, {"metadata": {"name": "c1", "resourceVersion": "1"}}),
        *(409, "Conflict", MODIFIED, about("c1")),
    ),
    "a patch of an older version": Refusal(
        ("PATCH", f"{MAPS}/c1", MERGE, {"metadata": {"resourceVersion": "1"}}),
        *(409, "Conflict", MODIFIED, about("c1")),
    ),
    "an update of nothing": Refusal(
        ("PUT", f"{MAPS}/zz", JSON, {"metadata": {"name": "zz"}}),
        *(404, "NotFound", 'configmaps "zz" not found', about("zz")),
    ),
    "another name": Refusal(
        ("PUT", f"{MAPS}/c1", JSON, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c2"}}),
        400,
        "BadRequest",
        "the name of the object (c2) does not match the name on the URL (c1)",
        None,
    ),
    "a test that fails": Refusal(
        (
            "PATCH",
            f"{MAPS}/c1",
            "application/json-patch+json",
            [{"op": "test", "path": "/data/a", "value": "x"}],
        ),
        422,
        "Invalid",
        "the server rejected our request due to an error in our request",
        {"causes": [cause("FieldValueInvalid", "patch", "operation 0 (test /data/a): the value there is another one")]},
        differs="the reference has no cause",
    ),
    "a patch of another type": Refusal(
        ("PATCH", f"{MAPS}/c1", "text/plain", {"data": {}}),
        *(415, "UnsupportedMediaType", "415: Unsupported Media Type", {}),
    ),
    "a body of another type": Refusal(
        ("POST", MAPS, "application/x-foo", "a"),
        415,
        "UnsupportedMediaType",
        "the body of the request was in an unknown format - accepted media types include: application/json, "
        "application/yaml, application/vnd.kubernetes.protobuf",
        None,
    ),
    "an apply against another owner": Refusal(
        (
            "PATCH",
            f"{MAPS}/c9?fieldManager=m2",
            APPLY,
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c9"}, "data": {"k": "2"}},
        ),
        409,
        "Conflict",
        'Apply failed with 1 conflict: conflict with "m1": .data.k',
        {"causes": [cause("FieldManagerConflict", ".data.k", 'conflict with "m1"')]},
    ),
    "an apply by nobody": Refusal(
        ("PATCH", f"{MAPS}/c9", APPLY, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c9"}}),
        422,
        "Invalid",
        'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch',
        {
            "group": "meta.k8s.io",
            "kind": "PatchOptions",
            "causes": [cause("FieldValueRequired", "fieldManager", "Required value: is required for apply patch")],
        },
    ),
    "a bad name": Refusal(
        ("POST", MAPS, JSON, {"metadata": {"name": "Bad_Name"}}),
        422,
        "Invalid",
        f'ConfigMap "Bad_Name" is invalid: metadata.name: {BAD_NAME}',
        {"name": "Bad_Name", "kind": "ConfigMap", "causes": [cause("FieldValueInvalid", "metadata.name", BAD_NAME)]},
    ),
    "no name": Refusal(
        ("POST", MAPS, "application/yaml", "kind: ConfigMap\n"),
        422,
        "Invalid",
        'ConfigMap "" is invalid: metadata.name: Required value: name or generateName is required',
        {
            "kind": "ConfigMap",
            "causes": [
                cause("FieldValueRequired", "metadata.name", "Required value: name or generateName is required")
            ],
        },
    ),
    "an unknown field": Refusal(
        ("POST", f"{MAPS}?fieldValidation=Strict", JSON, {"metadata": {"name": "fv"}, "foo": 1}),
        400,
        "BadRequest",
        'ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: unknown field "foo"',
        None,
    ),
    "an unknown field and a bad name": Refusal(
        ("POST", f"{MAPS}?fieldValidation=Strict", JSON, {"metadata": {"name": "Bad_Name"}, "foo": 1}),
        400,
        "BadRequest",
        'ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: unknown field "foo"',
        None,
    ),
    "no JSON": Refusal(
        ("POST", MAPS, JSON, "{bad"),
        400,
        "BadRequest",
        "the body is not JSON: JSON is malformed: object keys must be strings (byte 1)",
        None,
        differs="the words of another parser",
    ),
    "a list of the future": Refusal(
        ("GET", f"{MAPS}?resourceVersion=999999999", None, None),
        504,
        "Timeout",
        "Timeout: Too large resource version: 999999999, current: REVISION",
        {
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        },
    ),
    "a match of no version": Refusal(
        ("GET", f"{MAPS}?resourceVersionMatch=Exact", None, None),
        422,
        "Invalid",
        'ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden '
        "unless resourceVersion is provided",
        {
            "group": "meta.k8s.io",
            "kind": "ListOptions",
            "causes": [
                cause(
                    "FieldValueForbidden",
                    "resourceVersionMatch",
                    "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
                )
            ],
        },
    ),
    "exactly any version": Refusal(
        ("GET", f"{MAPS}?resourceVersion=0&resourceVersionMatch=Exact", None, None),
        422,
        "Invalid",
        f'ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: {EXACTLY_ANY}',
        {
            "group": "meta.k8s.io",
            "kind": "ListOptions",
            "causes": [cause("FieldValueForbidden", "resourceVersionMatch", EXACTLY_ANY)],
        },
    ),
    "initial events of a list": Refusal(
        ("GET", f"{MAPS}?sendInitialEvents=true&resourceVersion=0&resourceVersionMatch=NotOlderThan", None, None),
        422,
        "Invalid",
        f'ListOptions.meta.k8s.io "" is invalid: sendInitialEvents: {NOT_FOR_LISTS}',
        {
            "group": "meta.k8s.io",
            "kind": "ListOptions",
            "causes": [cause("FieldValueForbidden", "sendInitialEvents", NOT_FOR_LISTS)],
        },
    ),
    "initial events without a match": Refusal(
        ("GET", f"{MAPS}?watch=1&sendInitialEvents=true", None, None),
        422,
        "Invalid",
        'ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: sendInitialEvents requires setting '
        "resourceVersionMatch to NotOlderThan",
        {
            "group": "meta.k8s.io",
            "kind": "ListOptions",
            "causes": [
                cause(
                    "FieldValueForbidden",
                    "resourceVersionMatch",
                    "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
                )
            ],
        },
    ),
    "a deletion tried in another way": Refusal(
        ("DELETE", f"{MAPS}/c1", JSON, {"dryRun": ["Some"]}),
        422,
        "Invalid",
        f'DeleteOptions.meta.k8s.io "" is invalid: dryRun: {ONLY_ALL}',
        {
            "group": "meta.k8s.io",
            "kind": "DeleteOptions",
            "causes": [cause("FieldValueNotSupported", "dryRun", ONLY_ALL)],
        },
    ),
    "a deletion with two policies": Refusal(
        ("DELETE", f"{MAPS}/c1?dryRun=All", JSON, {"orphanDependents": True, "propagationPolicy": "Background"}),
        422,
        "Invalid",
        f'DeleteOptions.meta.k8s.io "" is invalid: propagationPolicy: {NOT_BOTH}',
        {
            "group": "meta.k8s.io",
            "kind": "DeleteOptions",
            "causes": [cause("FieldValueInvalid", "propagationPolicy", NOT_BOTH)],
        },
    ),
    "another object": Refusal(
        ("DELETE", f"{MAPS}/c1", JSON, {"preconditions": {"uid": "nope"}}),
        409,
        "Conflict",
        'Operation cannot be fulfilled on ConfigMap "c1": the UID in the precondition (nope) does not match the UID in '
        "record (UID). The object might have been deleted and then recreated",
        {"name": "c1", "kind": "ConfigMap"},
    ),
    "a project that ends": Refusal(
        ("POST", "/api/v1/namespaces/ending/configmaps", JSON, {"metadata": {"name": "late"}}),
        403,
        "Forbidden",
        'configmaps "late" is forbidden: unable to create new content in namespace ending because it is being '
        "terminated",
        about(
            "late",
            causes=[cause("NamespaceTerminating", "metadata.namespace", "namespace ending is being terminated")],
        ),
    ),
    "a pod's node": Refusal(
        ("PATCH", "/api/v1/namespaces/pr/pods/p1", MERGE, {"spec": {"nodeName": "x"}}),
        422,
        "Invalid",
        f'Pod "p1" is invalid: spec: {POD_UPDATES}',
        {"name": "p1", "kind": "Pod", "causes": [cause("FieldValueForbidden", "spec", POD_UPDATES)]},
        differs="the reference goes on with the difference, as its own structures have it",
    ),
    "a binding of another pod": Refusal(
        (
            "POST",
            "/api/v1/namespaces/pr/pods/p1/binding",
            JSON,
            {"metadata": {"name": "p2"}, "target": {"kind": "Node", "name": "x"}},
        ),
        *(400, "BadRequest", "name in URL does not match name in Binding object", None),
    ),
    "an address of another range": Refusal(
        (
            "POST",
            "/api/v1/namespaces/pr/services",
            JSON,
            {"metadata": {"name": "s2"}, "spec": {"ports": [{"port": 80}], "clusterIP": "10.1.1.1"}},
        ),
        422,
        "Invalid",
        'Service "s2" is invalid: spec.clusterIPs: Invalid value: ["10.1.1.1"]: failed to allocate IP 10.1.1.1: the '
        "provided network does not match the current range",
        {
            "name": "s2",
            "kind": "Service",
            "causes": [
                cause(
                    "FieldValueInvalid",
                    "spec.clusterIPs",
                    'Invalid value: ["10.1.1.1"]: failed to allocate IP 10.1.1.1: the provided network does not match '
                    "the current range",
                )
            ],
        },
    ),
    "a deletion in all namespaces": Refusal(
        ("DELETE", "/api/v1/configmaps", None, None),
        *(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {}),
    ),
    "a subresource that is not served": Refusal(
        ("POST", "/api/v1/namespaces/pr/pods/p1/nothing?command=ls", JSON, "no JSON"),
        *(404, "NotFound", "the server could not find the requested resource", {}),
    ),
    "a token in another namespace": Refusal(
        ("POST", "/api/v1/namespaces/pr/serviceaccounts/robot/token", JSON, {"metadata": {"namespace": "other"}}),
        400,
        "BadRequest",
        "the namespace of the provided object (other) does not match the namespace sent on the request (pr)",
        None,
    ),
    "another address": Refusal(
        ("PATCH", "/api/v1/namespaces/pr/services/s1", MERGE, {"spec": {"clusterIP": "172.30.0.99"}}),
        422,
        "Invalid",
        'Service "s1" is invalid: spec.clusterIPs[0]: Invalid value: ["172.30.0.99"]: may not change once set',
        {"name": "s1", "kind": "Service", "causes": [cause("FieldValueInvalid", "spec.clusterIPs[0]", ONCE_SET)]},
    ),
    "nothing known": Refusal(
        ("GET", "/apis/none.example.org/v1/nothings", None, None),
        *(404, "NotFound", "the server could not find the requested resource", {}),
    ),
    "somebody else": Refusal(
        ("GET bob", "/api/v1/namespaces/pr/pods", None, None),
        403,
        "Forbidden",
        'pods is forbidden: User "bob" cannot list resource "pods" in API group "" in the namespace "pr"',
        {"kind": "pods"},
    ),
    "nobody": Refusal(
        ("GET system:anonymous", "/api/v1/pods", None, None),
        403,
        "Forbidden",
        'pods is forbidden: User "system:anonymous" cannot list resource "pods" in API group "" at the cluster scope',
        {"kind": "pods"},
    ),
}


class RecordingClient:
    """A client of the administrator, or of the users that it impersonates, that records warnings."""

    def __init__(self, server: ApiServer) -> None:
        context = Kubeconfig.load(server.kubeconfig).ssl_context()
        self.warnings: list[str] = []
        self._connection = HTTPSConnection(server.url.removeprefix("https://"), context=context, timeout=30)

    def request(self, method: str, path: str, content_type: str | None = None, body: object = None) -> tuple[int, Any]:
        verb, _, user = method.partition(" ")
        headers = {"Content-Type": content_type} if content_type else {}
        headers |= {"Impersonate-User": user} if user else {}
        text = body if isinstance(body, str) or body is None else json.dumps(body)
        self._connection.request(verb, path, text, headers)
        answer = self._connection.getresponse()
        self.warnings = answer.headers.get_all("Warning", [])
        return answer.status, json.loads(answer.read())

    def close(self) -> None:
        self._connection.close()


@pytest.fixture(scope="module")
def recording_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordingClient]:
    server = ApiServer(tmp_path_factory.mktemp("master"))
    server.start()
    client = RecordingClient(server)
    pod = {"metadata": {"name": "p1"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    service = {"metadata": {"name": "s1"}, "spec": {"ports": [{"port": 1}]}}
    held = {"metadata": {"name": "held", "finalizers": ["example.org/hold"]}}
    applied = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c9"}, "data": {"k": "1"}}
    for arguments in (
        ("POST", "/api/v1/namespaces", JSON, {"metadata": {"name": "pr"}}),
        ("POST", "/api/v1/namespaces", JSON, {"metadata": {"name": "ending"}}),
        ("POST", MAPS, JSON, {"metadata": {"name": "c1"}, "data": {"a": "1"}}),
        ("PATCH", f"{MAPS}/c9?fieldManager=m1", APPLY, applied),
        ("POST", "/api/v1/namespaces/pr/services", JSON, service),
        ("POST", "/api/v1/namespaces/pr/pods", JSON, pod),
        ("POST", "/api/v1/namespaces/ending/configmaps", JSON, held),
        ("DELETE", "/api/v1/namespaces/ending", None, None),
        ("POST", "/api/v1/namespaces/pr/serviceaccounts", JSON, {"metadata": {"name": "robot"}}),
        ("POST", "/api/v1/namespaces/pr/serviceaccounts/robot/token", JSON, {"metadata": {"namespace": "pr"}}),
    ):
        code, answer = client.request(*arguments)
        assert code in (200, 201), answer
    yield client
    client.close()
    assert server.stop() == 0


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=list(REFUSALS))
def test_error_statuses_equal_the_recorded_kube_apiserver(recording_client: RecordingClient, refusal: Refusal) -> None:
    _, known = recording_client.request("GET", f"{MAPS}/c1")
    code, came = recording_client.request(*refusal.request)
    _, now = recording_client.request("GET", "/api/v1/namespaces")
    message = refusal.message.replace("(UID)", f"({known['metadata']['uid']})")
    message = message.replace("REVISION", now["metadata"]["resourceVersion"])
    wanted: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    wanted |= {"message": message, "reason": refusal.reason, "code": refusal.code}
    assert came == wanted | ({} if refusal.details is None else {"details": refusal.details})
    assert code == refusal.code


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (("POST", MAPS, JSON, {"metadata": {"name": "warned"}, "foo": 1}), 201),
        (("POST", MAPS, JSON, {"metadata": {"name": "Bad_Name"}, "foo": 1}), 422),
        (("POST", "/api/v1/namespaces/ending/configmaps", JSON, {"metadata": {"name": "late"}, "foo": 1}), 403),
        (("PATCH", "/api/v1/namespaces/pr/services/s1", MERGE, {"foo": 1, "spec": {"clusterIP": "172.30.0.99"}}), 422),
    ],
    ids=str,
)
def test_unknown_fields_cause_warnings_even_when_the_request_fails(
    recording_client: RecordingClient, request_: tuple[str, str, str, object], code: int
) -> None:
    assert recording_client.request(*request_)[0] == code
    assert recording_client.warnings == ['299 - "unknown field \\"foo\\""']
