"""`podlane-cni`: lets a container runtime use the pod network by the Container Network Interface (specification 1.0).

A client of the sdn daemon's socket and nothing more. The network configuration may have, besides what the specification
asks for, `socket` (the sdn daemon's) and `project` (for runtimes that tell no namespace in CNI_ARGS).
"""

# A runtime waits for the start of this program at every container. `json`, `socket`, `http` and `typing` import `re`,
# `enum` and `collections`; to load them takes several times as long as the request. So this module imports only what
# they are built on.

from __future__ import annotations

import os
import sys
from _json import encode_basestring_ascii, make_scanner
from _socket import AF_UNIX, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
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


def answer(environment: Mapping[str, str], text: str) -> dict[str, Any]:
    """Return what the plugin prints for a call with this environment and this configuration. Raises CniError."""
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
        config = decode(text)
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
    if not _is_container_id(sandbox):
        raise CniError(
            BAD_ENVIRONMENT,
            f"CNI_CONTAINERID is {sandbox!r}; a letter or digit, then letters, digits, _, . and - are accepted",
        )
    if not _is_ifname(ifname):
        raise CniError(
            BAD_ENVIRONMENT, f"CNI_IFNAME is {ifname!r}; 1 to 15 characters without /, : and white space are accepted"
        )
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


def _is_container_id(text: str) -> bool:
    return text.isascii() and text[0].isalnum() and all(char.isalnum() or char in "_.-" for char in text)


def _is_ifname(text: str) -> bool:
    """Return whether the kernel accepts a name of a device."""
    return 1 <= len(text) <= 15 and text not in {".", ".."} and not any(c in "/:\0" or c.isspace() for c in text)


def _post(path: str, verb: str, request: Mapping[str, str]) -> dict[str, Any]:
    body = encode(request)
    head = f"POST /{verb} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    try:
        status, reply = _parse_response(_exchange(path, (head + body).encode()))
    except (OSError, ValueError, RecursionError) as error:
        raise CniError(TRY_LATER, f"the sdn daemon does not answer on {path}: {error}") from None
    if status != 200:
        raise CniError(reply.get("code", IO_FAILURE), reply.get("msg", f"the sdn daemon answers {status}"))
    return reply


def _exchange(path: str, request: bytes) -> bytes:
    """Send a request of HTTP/1.0, and return the response, whose end is that of the connection. Raises OSError."""
    connection = socket(AF_UNIX)
    try:
        connection.settimeout(ANSWER_SECONDS)
        connection.connect(path)
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))
    finally:
        connection.close()


def _parse_response(response: bytes) -> tuple[int, dict[str, Any]]:
    """Return status and body of a response. Raises ValueError."""
    head, _, body = response.partition(b"\r\n\r\n")
    words = head.split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/"):
        raise ValueError("its response is not HTTP")
    reply = decode(body.decode())
    if not isinstance(reply, dict):
        raise ValueError("its response is not a JSON object")
    return int(words[1]), reply


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


class _Decoding:
    """The defaults of `json.JSONDecoder`."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int, parse_constant = float, int, float


_scan = make_scanner(_Decoding())  # type: ignore[arg-type]  # typeshed asks for the scanner itself
_WHITE_SPACE = " \t\n\r"


def decode(text: str) -> Any:
    """Return the value of JSON, as `json.loads` does. Raises ValueError and RecursionError."""
    begin = len(text) - len(text.lstrip(_WHITE_SPACE))
    try:
        value, end = _scan(text, begin)
    except StopIteration as error:
        raise ValueError(f"a value is expected at character {error.value}") from None
    if text[end:].strip(_WHITE_SPACE):
        raise ValueError(f"nothing is expected after character {end}")
    return value


def encode(value: Any) -> str:
    """Return strings, whole numbers, lists and dictionaries as JSON."""
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    if isinstance(value, dict):
        entries = (f"{encode_basestring_ascii(key)}: {encode(entry)}" for key, entry in value.items())
        return "{" + ", ".join(entries) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(encode, value)) + "]"
    return str(value)


def main() -> int:
    """Print the answer, or the error, as JSON. Return the exit code: 0 done, 1 failed, 2 wrong use."""
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
        print(encode({"cniVersion": _reply_version(text), "code": error.code, "msg": str(error)}))
        return 1
    if printed:
        print(encode(printed))
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
