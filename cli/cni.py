"""`podlane-cni`: lets a container runtime use the pod network by the Container Network Interface (specification 1.0).

A client of the sdn daemon's socket and nothing more; it imports only the standard library, because a runtime waits for
its start at every container. The network configuration may have, besides what the specification asks for, `socket`
(the sdn daemon's) and `project` (for runtimes that tell no namespace in CNI_ARGS).
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException
from typing import Any

SOCKET = "/run/podlane/sdn.sock"
VERSIONS = ("0.4.0", "1.0.0")
ANSWER_SECONDS = 30.0
BAD_VERSION, BAD_ENVIRONMENT, IO_FAILURE, BAD_JSON, BAD_CONFIG, TRY_LATER = 1, 4, 5, 6, 7, 11


class CniError(Exception):
    """`code` is one of the specification's; `str(error)` a sentence for the operator."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class _SdnConnection(HTTPConnection):
    """HTTP over the daemon's unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("sdn", timeout=ANSWER_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def answer(environment: Mapping[str, str], text: str) -> dict[str, Any]:
    """What the plugin prints for a call with this environment and this configuration. Raises CniError."""
    verb = environment.get("CNI_COMMAND", "")
    if verb == "VERSION":
        return {"cniVersion": VERSIONS[-1], "supportedVersions": list(VERSIONS)}
    if verb not in {"ADD", "DEL", "CHECK"}:
        raise CniError(BAD_ENVIRONMENT, f"CNI_COMMAND is {verb!r}; ADD, DEL, CHECK or VERSION is accepted")
    config = _config(text)
    reply = _post(str(config.get("socket", SOCKET)), verb, _request(verb, environment, config))
    return _result(reply, config["cniVersion"], environment) if verb == "ADD" else {}


def _config(text: str) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CniError(BAD_JSON, f"the network configuration is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise CniError(BAD_JSON, "the network configuration is not a JSON object")
    version = config.get("cniVersion", "")
    if version not in VERSIONS:
        raise CniError(BAD_VERSION, f"cniVersion is {version!r}; {' or '.join(VERSIONS)} is accepted")
    return config


def _request(verb: str, environment: Mapping[str, str], config: Mapping[str, Any]) -> dict[str, str]:
    needed = ("CNI_CONTAINERID",) if verb == "DEL" else ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME")
    missing = [name for name in needed if not environment.get(name)]
    if missing:
        raise CniError(BAD_ENVIRONMENT, f"{', '.join(missing)} must be set for {verb}")
    sandbox, ifname = environment["CNI_CONTAINERID"], environment.get("CNI_IFNAME", "eth0")
    for name, value, syntax in (
        ("CNI_CONTAINERID", sandbox, r"[A-Za-z0-9][A-Za-z0-9_.-]*"),
        ("CNI_IFNAME", ifname, r"(?!\.{1,2}$)[^/:\s\0]{1,15}"),
    ):
        if not re.fullmatch(syntax, value):
            raise CniError(BAD_ENVIRONMENT, f"{name} is {value!r}; what matches {syntax} is accepted")
    if verb == "DEL":
        return {"sandbox": sandbox}
    pairs = (word.partition("=") for word in environment.get("CNI_ARGS", "").split(";"))
    cni_args = {key: value for key, _, value in pairs}
    project = cni_args.get("K8S_POD_NAMESPACE") or config.get("project")
    if not isinstance(project, str) or not project:
        raise CniError(
            BAD_CONFIG, "no project: neither K8S_POD_NAMESPACE in CNI_ARGS nor `project` in the configuration"
        )
    return {
        "sandbox": sandbox,
        "netns": environment["CNI_NETNS"],
        "namespace": project,
        "name": cni_args.get("K8S_POD_NAME") or sandbox,
        "uid": cni_args.get("K8S_POD_UID", ""),
        "ifname": environment["CNI_IFNAME"],
        "runtime": "cni",
    }


def _post(path: str, verb: str, request: Mapping[str, str]) -> dict[str, Any]:
    connection = _SdnConnection(path)
    try:
        connection.request("POST", f"/{verb}", json.dumps(request), {"Content-Type": "application/json"})
        response = connection.getresponse()
        reply = json.loads(response.read())
    except (OSError, HTTPException, ValueError) as error:
        raise CniError(TRY_LATER, f"the sdn daemon does not answer on {path}: {error}") from None
    finally:
        connection.close()
    if response.status != 200:
        raise CniError(reply.get("code", IO_FAILURE), reply.get("msg", f"the sdn daemon answers {response.status}"))
    return dict(reply)


def _result(reply: Mapping[str, Any], version: str, environment: Mapping[str, str]) -> dict[str, Any]:
    address: dict[str, Any] = {"address": reply["ip"], "gateway": reply["gateway"], "interface": 1}
    if version == "0.4.0":
        address["version"] = "4"
    pod = {"name": environment["CNI_IFNAME"], "mac": reply["mac"], "sandbox": environment["CNI_NETNS"]}
    return {
        "cniVersion": version,
        "interfaces": [{"name": reply["hostInterface"]}, pod],
        "ips": [address],
        "routes": [{"dst": "0.0.0.0/0", "gw": reply["gateway"]}],
    }


def main() -> int:
    """Entry point: the answer, or the error, as JSON on standard output; 0 done, 1 failed, 2 wrong use."""
    if sys.argv[1:2] in (["--version"], ["--help"]):
        _print_help(sys.argv[1])
        return 0
    if sys.argv[1:]:
        sys.stderr.write(f"podlane-cni: takes no arguments but --help and --version, found {sys.argv[1]!r}\n")
        return 2
    text = "" if os.environ.get("CNI_COMMAND") == "VERSION" or sys.stdin.isatty() else sys.stdin.read()
    try:
        printed = answer(os.environ, text)
    except CniError as error:
        print(json.dumps({"cniVersion": _reply_version(text), "code": error.code, "msg": str(error)}))
        return 1
    if printed:
        print(json.dumps(printed))
    return 0


def _reply_version(text: str) -> str:
    """Return the version of an error reply: that of the configuration if it is supported, else the newest."""
    try:
        return str(_config(text)["cniVersion"])
    except CniError:
        return VERSIONS[-1]


def _print_help(option: str) -> None:
    if option == "--version":
        from importlib.metadata import version  # noqa: PLC0415 - takes longer than all the rest

        print(f"podlane-cni {version('podlane')}")
    else:
        print(__doc__)


if __name__ == "__main__":
    sys.exit(main())
