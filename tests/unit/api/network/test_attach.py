"""Requests on the sdn daemon's socket."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest
from msgspec.structs import replace

from api.network.attach import NODE_AGENT, AttachRequest, check_attach_request

GOOD = AttachRequest(sandbox="0af3", netns="/proc/7/ns/net", namespace="red", name="web", runtime=NODE_AGENT)


def test_valid_attach_request_has_no_errors() -> None:
    assert list(check_attach_request(GOOD)) == []
    assert (
        list(
            check_attach_request(replace(GOOD, sandbox="a" * 64, name="n" * 253, ifname="net1.5", ingress_bandwidth=1))
        )
        == []
    )


@pytest.mark.parametrize(
    "change",
    [
        {"sandbox": ""},
        {"sandbox": "../x"},
        {"sandbox": "a b"},
        {"netns": "proc/7/ns/net"},
        {"netns": "/a\0b"},
        {"ifname": "a" * 16},
        {"ifname": "a/b"},
        {"ifname": "eth0\0"},
        {"ifname": ".."},
        {"ifname": "lo"},
        {"namespace": "Red"},
        {"namespace": ""},
        {"name": ""},
        {"name": "a\nb"},
        {"runtime": "podman"},
        {"ingress_bandwidth": -1},
        {"egress_bandwidth": -1},
    ],
)
def test_attach_request_error_names_field_and_value(change: Mapping[str, object]) -> None:
    (actual,) = check_attach_request(replace(GOOD, **change))
    ((field, value),) = change.items()
    assert actual.startswith(
        f"{AttachRequest.__struct_encode_fields__[AttachRequest.__struct_fields__.index(field)]} is"
    )
    assert repr(value) in actual


def test_attach_request_reports_every_error() -> None:
    assert len(list(check_attach_request(replace(GOOD, sandbox="", netns="", ifname="", namespace="", name="")))) == 5


def test_misspelt_attach_request_field_is_rejected() -> None:
    with pytest.raises(msgspec.ValidationError, match="ingress_bandwidth"):
        msgspec.json.decode(
            msgspec.json.encode({**msgspec.to_builtins(GOOD), "ingress_bandwidth": 1}), type=AttachRequest
        )
