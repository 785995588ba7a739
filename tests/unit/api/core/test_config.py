"""ConfigMaps and Secrets."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest
from msgspec.structs import replace

from api.core.config import MAX_BYTES, ConfigMap, Secret, binary_data
from api.meta.types import Object, ObjectMeta
from api.validation.registry import check_update, decode, default

META = {"name": "x", "namespace": "red"}


def paths(kind: type[Object], **fields: Any) -> list[str]:
    return [problem.path for problem in decode(kind, {"metadata": META, **fields})[1]]


def coded(text: str) -> str:
    return b64encode(text.encode()).decode()


@pytest.mark.parametrize("key", ["a", "a.b-c_D9", ".hidden", ".x", "x" * 253])
def test_config_map_accepts_keys_that_are_file_names(key: str) -> None:
    assert paths(ConfigMap, data={key: "1"}) == []
    assert paths(Secret, stringData={key: "1"}) == []


@pytest.mark.parametrize("key", ["", ".", "..", "..data", "a/b", "a b", "ä", "x" * 254])
def test_config_map_rejects_keys_that_are_no_file_names(key: str) -> None:
    assert paths(ConfigMap, data={key: "1"}) == [f"data[{key}]"]
    assert paths(ConfigMap, binaryData={key: "MQ=="}) == [f"binaryData[{key}]"]
    assert paths(Secret, data={key: "MQ=="}) == [f"data[{key}]"]
    assert paths(Secret, stringData={key: "1"}) == [f"stringData[{key}]"]


def test_config_map_rejects_duplicate_keys_and_more_than_a_mebibyte() -> None:
    assert paths(ConfigMap, data={"a": "1"}, binaryData={"a": "MQ=="}) == ["binaryData[a]"]
    assert paths(ConfigMap, data={"a": "x" * (MAX_BYTES - 1)}, binaryData={"b": "MQ=="}) == []
    assert paths(ConfigMap, data={"a": "x" * MAX_BYTES}, binaryData={"b": "MQ=="}) == ["data"]
    assert paths(Secret, data={"a": coded("x" * MAX_BYTES)}, stringData={"b": "1"}) == ["data"]
    assert paths(Secret, data={"a": coded("x" * MAX_BYTES)}, stringData={"a": "1"}) == []


def test_secret_data_must_be_base64() -> None:
    assert paths(Secret, data={"a": "not base64!"}) == ["data[a]"]
    assert paths(ConfigMap, binaryData={"a": "a"}) == ["binaryData[a]"]
    config, _, _ = decode(ConfigMap, {"metadata": META, "data": {"t": "ü"}, "binaryData": {"b": "AAE="}})
    assert config is not None
    assert binary_data(config) == {"t": "ü".encode(), "b": b"\0\1"}


@pytest.mark.parametrize(
    ("kind", "data", "wrong"),
    [
        ("kubernetes.io/tls", {"tls.crt": "c"}, ["data[tls.key]"]),
        ("kubernetes.io/tls", {"tls.crt": "c", "tls.key": ""}, []),
        ("kubernetes.io/dockerconfigjson", {".dockerconfigjson": "{"}, ["data[.dockerconfigjson]"]),
        ("kubernetes.io/dockerconfigjson", {".dockerconfigjson": "{}"}, []),
        ("kubernetes.io/ssh-auth", {}, ["data[ssh-privatekey]"]),
        ("kubernetes.io/basic-auth", {"username": "u"}, []),
        ("kubernetes.io/basic-auth", {"user": "u"}, ["data"]),
        ("kubernetes.io/service-account-token", {}, ["metadata.annotations[kubernetes.io/service-account.name]"]),
        ("Opaque", {}, []),
        ("example.com/own", {}, []),
    ],
)
def test_secret_type_requires_its_keys(kind: str, data: dict[str, str], wrong: list[str]) -> None:
    assert paths(Secret, type=kind, stringData=data) == wrong


def test_secret_string_data_is_stored_as_data() -> None:
    written = Secret(metadata=ObjectMeta(name="x"), data={"a": b"old", "b": b"2"}, string_data={"a": "new"})
    defaulted = default(written)
    assert (defaulted.data, defaulted.string_data, defaulted.type) == ({"a": b"new", "b": b"2"}, {}, "Opaque")
    assert default(defaulted) == defaulted


def test_immutable_config_map_and_secret_cannot_change() -> None:
    def changed(old: Object, **fields: Any) -> list[str]:
        return [problem.path for problem in check_update(old, replace(old, **fields))]

    config = ConfigMap(data={"a": "1"}, immutable=True)
    assert changed(config, metadata=ObjectMeta(labels={"a": "b"})) == []
    assert changed(config, data={"a": "2"}) == ["data"]
    assert changed(config, binary_data={"b": b"2"}) == ["data"]
    assert changed(config, immutable=None) == ["immutable"]
    assert changed(replace(config, immutable=None), data={}, immutable=True) == []
    secret = Secret(data={"a": b"1"}, type="Opaque")
    assert changed(secret, data={}) == []
    assert changed(secret, type="other") == ["type"]
    assert changed(replace(secret, immutable=True), data={}) == ["data"]
