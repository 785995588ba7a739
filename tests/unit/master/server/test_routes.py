"""Routing of request paths, Accept headers and continue tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.errors import StatusError
from master.registry import request
from master.registry.request import ContinueToken
from master.serialization import negotiation
from master.serialization.negotiation import View
from master.server import routes


def read(path: str) -> tuple[str, str, str, str] | None:
    request_info = routes.resolve_path(path)
    return (
        None
        if request_info is None
        else (request_info.resource.kind, request_info.namespace, request_info.name, request_info.subresource)
    )


PATHS = [
    ("/api/v1/pods", ("Pod", "", "", "")),
    ("/api/v1/namespaces/red/pods", ("Pod", "red", "", "")),
    ("/api/v1/namespaces/red/pods/", ("Pod", "red", "", "")),
    ("/api/v1/namespaces/red/pods/p", ("Pod", "red", "p", "")),
    ("/api/v1/namespaces/red/pods/p/status", ("Pod", "red", "p", "status")),
    ("/api/v1/namespaces", ("Namespace", "", "", "")),
    ("/api/v1/namespaces/red", ("Namespace", "", "red", "")),
    ("/api/v1/namespaces/red/status", ("Namespace", "", "red", "status")),
    ("/api/v1/namespaces/pods", ("Namespace", "", "pods", "")),
    ("/api/v1/namespaces/red/finalize", ("Namespace", "", "red", "finalize")),
    ("/api/v1/nodes/n1/status", ("Node", "", "n1", "status")),
    ("/apis/network.openshift.io/v1/hostsubnets/n1", ("HostSubnet", "", "n1", "")),
    ("/api/v1", None),
    ("/api/v1/songs", None),
    ("/api/v2/pods", None),
    ("/api/v1/pods/p", None),
    ("/api/v1/namespaces/red/pods/p/status/x", None),
    ("/api/v1/namespaces//pods", None),
    ("/apis/network.openshift.io/v1", None),
    ("/apis/network.openshift.io/v1/pods", None),
    ("/", None),
    ("", None),
]


@pytest.mark.parametrize(("path", "expected"), PATHS)
def test_request_path_is_parsed(path: str, expected: tuple[str, str, str, str] | None) -> None:
    assert read(path) == expected


@given(st.lists(st.sampled_from(["", "api", "apis", "v1", "namespaces", "pods", "x", "%", "network.openshift.io"])))
def test_any_request_path_is_parsed_or_rejected(parts: list[str]) -> None:
    routes.resolve_path("/".join(parts))


@pytest.mark.parametrize(
    ("accept", "view"),
    [
        ("", View.OBJECT),
        ("*/*", View.OBJECT),
        ("application/json", View.OBJECT),
        ("application/vnd.kubernetes.protobuf,application/json", View.OBJECT),
        ("application/json;stream=watch", View.OBJECT),
        ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", View.TABLE),
        ("application/json;as=Table;v=v1beta1;g=meta.k8s.io, application/json", View.TABLE_V1BETA1),
        ("application/json;as=Table;v=v2;g=meta.k8s.io, application/json", View.OBJECT),
        ("application/json;as=Table;v=v1;g=example.com, application/json", View.OBJECT),
        ("application/json;as=PartialObjectMetadata;v=v1beta1;g=meta.k8s.io", View.METADATA_V1BETA1),
        ("application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", View.METADATA),
    ],
)
def test_accept_header_selects_the_response_form(accept: str, view: View) -> None:
    assert negotiation.negotiate(accept) is view


@pytest.mark.parametrize("accept", ["application/x-foo", "application/json;as=Song;v=v1;g=meta.k8s.io", "text/html"])
def test_unsupported_accept_header_is_not_acceptable(accept: str) -> None:
    with pytest.raises(StatusError) as refused:
        negotiation.negotiate(accept)
    assert refused.value.status.code == 406


def test_continue_token_round_trips() -> None:
    page = ContinueToken(7, ("red", "p"))
    assert request.decode_continue(request.encode_continue(page)) == page


@given(st.text())
def test_invalid_continue_token_is_rejected(text: str) -> None:
    with pytest.raises(StatusError) as refused:
        request.decode_continue(text)
    assert refused.value.status.code == 400
