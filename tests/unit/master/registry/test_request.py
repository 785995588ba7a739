"""The verbs that clients can use on the objects of a path."""

from __future__ import annotations

from dataclasses import replace

import pytest

from master.errors import StatusError
from master.registry.request import check_verb, request_seconds
from master.request_info import RequestInfo
from master.resources.configuration import CONFIG_MAPS
from master.resources.nodes import NODES
from master.resources.resource import READ_VERBS, VERBS, AnyResource

READ_ONLY = replace(CONFIG_MAPS, verbs=READ_VERBS, create_denial="the master makes them")
WRITE_VERBS = tuple(verb for verb in VERBS if verb not in READ_VERBS)


def info(verb: str, resource: AnyResource = READ_ONLY) -> RequestInfo:
    name = "" if verb in ("create", "deletecollection", "list", "watch") else "x"
    return RequestInfo(resource, "red" if resource.namespaced else "", name)


def status(verb: str, info: RequestInfo) -> int:
    try:
        check_verb(verb, info)
    except StatusError as error:
        return error.status.code
    return 0


@pytest.mark.parametrize("verb", WRITE_VERBS)
def test_a_stored_resource_is_read_only_by_its_verbs(verb: str) -> None:
    assert status(verb, info(verb)) == 405
    assert status(verb, info(verb, CONFIG_MAPS)) == 0


@pytest.mark.parametrize("verb", READ_VERBS)
def test_a_read_only_resource_is_read(verb: str) -> None:
    assert status(verb, info(verb)) == 0


def test_only_the_denial_of_a_create_says_why() -> None:
    with pytest.raises(StatusError, match="the master makes them"):
        check_verb("create", info("create"))
    with pytest.raises(StatusError) as denied:
        check_verb("delete", info("delete"))
    assert "the master makes them" not in str(denied.value)


def test_named_objects_of_a_resource_that_is_listed_empty_pass() -> None:
    """The registry reports that the object does not exist."""
    empty = replace(READ_ONLY, listed_empty=True)
    actual = {verb: status(verb, info(verb, empty)) for verb in WRITE_VERBS}
    assert actual == {"create": 405, "delete": 0, "deletecollection": 405, "patch": 0, "update": 0}


def test_method_without_a_verb_is_not_allowed() -> None:
    assert status("", info("get", CONFIG_MAPS)) == 405
    assert status("", info("get", replace(READ_ONLY, listed_empty=True))) == 405


def test_collection_is_deleted_in_one_namespace_only() -> None:
    assert status("deletecollection", RequestInfo(CONFIG_MAPS)) == 405
    assert status("deletecollection", RequestInfo(NODES)) == 0


@pytest.mark.parametrize("verb", ["update", "patch"])
def test_update_needs_a_name(verb: str) -> None:
    assert status(verb, RequestInfo(CONFIG_MAPS, "red")) == 405


def test_read_only_resource_has_no_usual_status_subresource() -> None:
    assert NODES.subresource("status") is not None
    assert replace(NODES, verbs=READ_VERBS).subresource("status") is None


@pytest.mark.parametrize("text", ["", "0", "34s", "1h2m3.5s", "-1ms", ".5m", "300us"])
def test_timeout_is_a_duration(text: str) -> None:
    request_seconds({"timeout": text})


@pytest.mark.parametrize("text", ["bogus", "34", "1d", "s", "1 s", "1s" * 40, "\u0661s"])
def test_timeout_that_is_no_duration_is_rejected(text: str) -> None:
    with pytest.raises(StatusError, match="invalid timeout specified in the request URL") as caught:
        request_seconds({"timeout": text})
    assert caught.value.status.code == 400
