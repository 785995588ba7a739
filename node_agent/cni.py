"""The Container Network Interface as a runtime speaks it: versions 0.4.0 and 1.0.0. Pure.

https://www.cni.dev/docs/spec/: plugins of a list are called in order for ADD and CHECK, in reverse for DEL; each gets
the result of the one before, CHECK and DEL get that of the whole ADD.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from api.attach import Attachment, AttachRequest

VERSIONS = ("0.4.0", "1.0.0")
TRY_LATER = 11
MOST_BURST = 2**31 - 1


class BadConflist(ValueError):
    """`str(error)` says what was found and what is accepted."""


class Conflist(msgspec.Struct, frozen=True, rename="camel"):
    """A network configuration list; `plugins` are kept as they came."""

    name: str
    cni_version: str
    plugins: tuple[dict[str, Any], ...]
    disable_check: bool = False


class Record(msgspec.Struct, frozen=True):
    """One sandbox, as its file tells after a restart; written before ADD, and with its result afterwards.

    `inode` is that of the network namespace: by the time of DEL the path may lead to another one.
    """

    network: Conflist
    request: AttachRequest
    inode: int
    result: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One execution of a plugin: its name, its environment and what it reads."""

    plugin: str
    environment: Mapping[str, str]
    text: bytes


def conflist(text: bytes) -> Conflist:
    """From a file. Raises BadConflist."""
    try:
        found = msgspec.json.decode(text, type=Conflist)
    except msgspec.DecodeError as error:
        raise BadConflist(f"{error}; a network configuration list is accepted") from None
    if found.cni_version not in VERSIONS:
        raise BadConflist(f"cniVersion is {found.cni_version!r}; {' or '.join(VERSIONS)} is accepted")
    if not found.plugins or not all(isinstance(plugin.get("type"), str) for plugin in found.plugins):
        raise BadConflist("plugins: at least one, each with a type, is accepted")
    if any("/" in plugin["type"] for plugin in found.plugins):
        raise BadConflist("plugins: a type is the name of a file in cniBinDirs")
    return found


def call(
    verb: str, record: Record, number: int, path: str, previous: Mapping[str, Any] | None, netns: str | None = None
) -> Call:
    """How to call one plugin of the list; `netns` replaces the path of the request, empty when it is gone."""
    network, request, plugin = record.network, record.request, record.network.plugins[number]
    told = {
        "IgnoreUnknown": "1",
        "K8S_POD_NAMESPACE": request.namespace,
        "K8S_POD_NAME": request.name,
        "K8S_POD_INFRA_CONTAINER_ID": request.sandbox,
        "K8S_POD_UID": request.uid,
    }
    environment = {
        "CNI_COMMAND": verb,
        "CNI_CONTAINERID": request.sandbox,
        "CNI_NETNS": request.netns if netns is None else netns,
        "CNI_IFNAME": request.ifname,
        "CNI_PATH": path,
        "CNI_ARGS": ";".join(f"{key}={value}" for key, value in told.items()),
    }
    config: dict[str, Any] = {key: value for key, value in plugin.items() if key != "capabilities"}
    config |= {"name": network.name, "cniVersion": network.cni_version}
    runtime = _runtime(plugin, request)
    config |= {"runtimeConfig": runtime} if runtime else {}
    config |= {"prevResult": previous} if previous is not None else {}
    return Call(plugin["type"], environment, msgspec.json.encode(config))


def _runtime(plugin: Mapping[str, Any], request: AttachRequest) -> dict[str, Any]:
    """What the plugin says it can do, and this pod wants. Burst is the most that the plugin takes, as kubelet sends."""
    if not plugin.get("capabilities", {}).get("bandwidth"):
        return {}
    limits: dict[str, int] = {}
    for name, bits in (("ingress", request.ingress_bandwidth), ("egress", request.egress_bandwidth)):
        if bits:
            limits |= {f"{name}Rate": bits, f"{name}Burst": MOST_BURST}
    return {"bandwidth": limits} if limits else {}


def attachment(result: Mapping[str, Any]) -> Attachment:
    """What the result of a whole ADD says of the pod; its `ip` is empty when it has got no address."""
    first: Mapping[str, Any] = next(iter(result.get("ips", ())), {})
    interfaces = result.get("interfaces", ())
    own: Mapping[str, Any] = next((one for one in interfaces if one.get("sandbox")), {})
    host: Mapping[str, Any] = next((one for one in interfaces if not one.get("sandbox")), {})
    return Attachment(
        ip=first.get("address", ""),
        gateway=first.get("gateway", ""),
        mac=own.get("mac", ""),
        mtu=own.get("mtu", 0),
        host_interface=host.get("name", ""),
    )
