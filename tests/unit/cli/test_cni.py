"""The CNI plugin, against a socket that answers as the sdn daemon does."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import UnixStreamServer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.cni import CniError, answer, decode, encode

ROOT = Path(__file__).resolve().parents[3]
CALL = {
    "CNI_COMMAND": "ADD",
    "CNI_CONTAINERID": "abc",
    "CNI_NETNS": "/run/netns/x",
    "CNI_IFNAME": "eth0",
    "CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=red;K8S_POD_NAME=web;K8S_POD_UID=u1",
}
ATTACHMENT = {"ip": "10.128.0.2/23", "gateway": "10.128.0.1", "mac": "0a:58:0a:80:00:02", "mtu": 1450}


class Sdn:
    """A fake sdn daemon that records requests and returns a set reply."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.status, self.reply = 200, json.dumps({**ATTACHMENT, "hostInterface": "veth1"})


@pytest.fixture
def sdn(tmp_path: Path) -> Iterator[Sdn]:
    spoken = Sdn(tmp_path / "sdn.sock")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            spoken.requests.append((self.path, json.loads(body)))
            self.send_response(spoken.status)
            self.end_headers()
            self.wfile.write(spoken.reply.encode())

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            """Say nothing."""

    class Server(UnixStreamServer):
        def get_request(self) -> tuple[Any, Any]:
            return super().get_request()[0], ("runtime", 0)

    with Server(str(spoken.path), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        yield spoken
        server.shutdown()
        serving.join()


def configuration(sdn: Sdn, version: str = "1.0.0", **rest: object) -> str:
    return json.dumps(
        {"cniVersion": version, "name": "podlane", "type": "podlane-cni", "socket": str(sdn.path), **rest}
    )


def test_cni_add_attaches_the_pod_of_its_arguments(sdn: Sdn) -> None:
    result = answer(CALL, configuration(sdn))
    desired = {
        "netns": "/run/netns/x",
        "namespace": "red",
        "name": "web",
        "uid": "u1",
        "ifname": "eth0",
        "runtime": "cni",
    }
    assert sdn.requests == [("/ADD", {"sandbox": "abc", **desired})]
    assert result == {
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "veth1"}, {"name": "eth0", "mac": ATTACHMENT["mac"], "sandbox": "/run/netns/x"}],
        "ips": [{"address": "10.128.0.2/23", "gateway": "10.128.0.1", "interface": 1}],
        "routes": [{"dst": "0.0.0.0/0", "gw": "10.128.0.1"}],
    }


def test_cni_result_of_older_versions_names_the_ip_family(sdn: Sdn) -> None:
    result = answer(CALL, configuration(sdn, "0.4.0"))
    assert (result["cniVersion"], result["ips"][0]["version"]) == ("0.4.0", "4")


def test_cni_add_without_arguments_uses_the_configured_project(sdn: Sdn) -> None:
    answer({**CALL, "CNI_ARGS": ""}, configuration(sdn, project="blue"))
    assert (sdn.requests[0][1]["namespace"], sdn.requests[0][1]["name"]) == ("blue", "abc")


def test_cni_del_needs_only_the_container_id(sdn: Sdn) -> None:
    assert answer({"CNI_COMMAND": "DEL", "CNI_CONTAINERID": "abc"}, configuration(sdn)) == {}
    assert sdn.requests == [("/DEL", {"sandbox": "abc"})]


def test_cni_error_of_the_daemon_is_returned_unchanged(sdn: Sdn) -> None:
    sdn.status, sdn.reply = 503, json.dumps({"code": 11, "msg": "project red has no NetNamespace yet"})
    with pytest.raises(CniError, match="project red has no NetNamespace yet") as refused:
        answer(CALL, configuration(sdn))
    assert refused.value.code == 11


def test_cni_version_needs_no_daemon() -> None:
    assert answer({"CNI_COMMAND": "VERSION"}, "")["supportedVersions"] == ["0.4.0", "1.0.0"]


@pytest.mark.parametrize(
    ("environment", "text", "code", "words"),
    [
        ({"CNI_COMMAND": ""}, "{}", 4, "CNI_COMMAND is ''"),
        ({"CNI_COMMAND": "GC"}, "{}", 4, "ADD, DEL, CHECK or VERSION"),
        ({}, "no json", 6, "not JSON"),
        ({}, "[]", 6, "not a JSON object"),
        ({}, "[" * 100_000, 6, "not JSON"),
        ({"CNI_CONTAINERID": "../x y"}, '{"cniVersion": "1.0.0"}', 4, "CNI_CONTAINERID is '../x y'"),
        ({"CNI_IFNAME": "a" * 16}, '{"cniVersion": "1.0.0"}', 4, "CNI_IFNAME is 'aaaa"),
        ({"CNI_IFNAME": "a/b"}, '{"cniVersion": "1.0.0"}', 4, "CNI_IFNAME is 'a/b'"),
        ({}, '{"cniVersion": "0.1.0"}', 1, "'0.1.0'; 0.4.0 or 1.0.0 is accepted"),
        (
            {"CNI_NETNS": "", "CNI_IFNAME": ""},
            '{"cniVersion": "1.0.0"}',
            4,
            "CNI_NETNS, CNI_IFNAME must be set for ADD",
        ),
        ({"CNI_ARGS": ""}, '{"cniVersion": "1.0.0"}', 7, "no project"),
        ({}, '{"cniVersion": "1.0.0", "socket": "/nowhere/sdn.sock"}', 11, "does not answer on /nowhere/sdn.sock"),
    ],
)
def test_cni_error_has_its_code_and_message(environment: dict[str, str], text: str, code: int, words: str) -> None:
    with pytest.raises(CniError, match=words) as refused:
        answer({**CALL, **environment}, text)
    assert refused.value.code == code


@pytest.mark.parametrize("reply", ["", "[]", '{"ip": "10.1', "{} {}", "<html>"])
def test_cni_reply_that_is_not_a_json_object_is_an_error(sdn: Sdn, reply: str) -> None:
    sdn.reply = reply
    with pytest.raises(CniError, match="does not answer on") as refused:
        answer(CALL, configuration(sdn))
    assert refused.value.code == 11


def test_cni_plugin_imports_none_of_the_modules_that_take_longer_than_its_request() -> None:
    code = f"import sys; sys.path.append({str(ROOT)!r}); import cli.cni; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "cli.cni" in loaded
    assert loaded.isdisjoint({"collections", "enum", "functools", "http", "json", "re", "socket", "typing"})


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda values: st.lists(values) | st.dictionaries(st.text(), values),
)


@given(JSON_VALUES, st.sampled_from(["", " ", "\n\t "]))
def test_cni_plugin_reads_json_as_the_standard_library_does(value: object, space: str) -> None:
    assert decode(space + json.dumps(value) + space) == value


@given(st.text(alphabet='{}[]",:0123456789.e-+ \\utrfalsen\n'))
def test_cni_plugin_refuses_what_the_standard_library_refuses(text: str) -> None:
    try:
        desired = json.loads(text)
    except ValueError:
        with pytest.raises(ValueError, match=r"xpect|Invalid|Unterminated"):
            decode(text)
    else:
        assert repr(decode(text)) == repr(desired)


PRINTED_VALUES = st.recursive(
    st.integers() | st.text(), lambda values: st.lists(values) | st.dictionaries(st.text(), values)
)


@given(PRINTED_VALUES)
def test_cni_plugin_writes_json(value: object) -> None:
    assert json.loads(encode(value)) == value
