"""The network `cni`: configuration lists, plugin calls, records. Driver.

https://www.cni.dev/docs/spec/: plugins of a list are called in order for ADD and CHECK, in reverse for DEL; each gets
the result of the one before, CHECK and DEL get that of the whole ADD.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from api.network.attach import Attachment, AttachRequest, NetworkStatus
from reconcile.errors import DriverError, Gone, NotReady, Refused

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


class CniRecord(msgspec.Struct, frozen=True):
    """One sandbox, as its file tells after a restart; written before ADD, and with its result afterwards.

    `inode` is that of the network namespace: by the time of DEL the path may lead to another one.
    """

    network: Conflist
    request: AttachRequest
    inode: int
    result: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class PluginCall:
    """One execution of a plugin: its name, its environment and what it reads."""

    plugin: str
    environment: Mapping[str, str]
    text: bytes


def parse_conflist(text: bytes) -> Conflist:
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


def plugin_call(
    verb: str, record: CniRecord, number: int, path: str, previous: Mapping[str, Any] | None, netns: str | None = None
) -> PluginCall:
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
    return PluginCall(plugin["type"], environment, msgspec.json.encode(config))


def _runtime(plugin: Mapping[str, Any], request: AttachRequest) -> dict[str, Any]:
    """What the plugin says it can do, and this pod wants. Burst is the most that the plugin takes, as kubelet sends."""
    if not plugin.get("capabilities", {}).get("bandwidth"):
        return {}
    limits: dict[str, int] = {}
    for name, bits in (("ingress", request.ingress_bandwidth), ("egress", request.egress_bandwidth)):
        if bits:
            limits |= {f"{name}Rate": bits, f"{name}Burst": MOST_BURST}
    return {"bandwidth": limits} if limits else {}


def attachment_of(result: Mapping[str, Any]) -> Attachment:
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


PLUGIN_SECONDS = 60.0


class CniNetwork:
    """The first list, in the order of names, of `conf_dir` is the network; a file per sandbox tells what was done."""

    def __init__(self, conf_dir: Path, bin_dirs: str, state_dir: Path) -> None:
        self._conf_dir = conf_dir
        self._bin_dirs = bin_dirs
        self._state_dir = state_dir

    async def attach(self, request: AttachRequest) -> Attachment:
        """ADD, or CHECK when it was added before. Raises Gone when what ADD made is there no more."""
        known = self._read(request.sandbox)
        if known is not None and known.result is not None:
            await self._check(known, known.result)
            return attachment_of(known.result)
        if known is not None:
            await self.detach(request.sandbox)
        inode = _inode(request.netns)
        if inode is None:
            raise Gone(f"sandbox {request.sandbox}: there is no network namespace {request.netns}")
        record = CniRecord(self._network(), request, inode)
        self._write(record)
        try:
            result = await self._add(record)
        except DriverError:
            with contextlib.suppress(DriverError):
                await self.detach(request.sandbox)
            raise
        self._write(msgspec.structs.replace(record, result=result))
        return attachment_of(result)

    async def _add(self, record: CniRecord) -> dict[str, Any]:
        result: dict[str, Any] | None = None
        for number in range(len(record.network.plugins)):
            text = await self._run(plugin_call("ADD", record, number, self._bin_dirs, result))
            try:
                result = msgspec.json.decode(text, type=dict[str, Any])
            except msgspec.DecodeError as error:
                raise Refused(f"CNI plugin {record.network.plugins[number]['type']}: its result: {error}") from None
        return result or {}

    async def _check(self, record: CniRecord, result: dict[str, Any]) -> None:
        if record.network.disable_check:
            return
        if _inode(record.request.netns) != record.inode:
            raise Gone(f"sandbox {record.request.sandbox} has lost its network namespace")
        for number in range(len(record.network.plugins)):
            try:
                await self._run(plugin_call("CHECK", record, number, self._bin_dirs, result))
            except Refused as error:
                raise Gone(str(error)) from None

    async def detach(self, sandbox: str) -> None:
        """DEL by every plugin, the last one first, with the configuration that ADD had."""
        record = self._read(sandbox)
        if record is None:
            return
        netns = record.request.netns if _inode(record.request.netns) == record.inode else ""
        for number in reversed(range(len(record.network.plugins))):
            await self._run(plugin_call("DEL", record, number, self._bin_dirs, record.result, netns))
        self._file(sandbox).unlink(missing_ok=True)

    async def status(self) -> NetworkStatus:
        """Ready as soon as there is a network."""
        self._network()
        return NetworkStatus(ready=True)

    async def sandboxes(self) -> frozenset[str]:
        """Every sandbox for which a plugin may have done something."""
        return frozenset(path.stem for path in self._state_dir.glob("*.json"))

    def _network(self) -> Conflist:
        found = sorted(self._conf_dir.glob("*.conflist"))
        if not found:
            raise NotReady(f"no network for pods: there is no *.conflist in {self._conf_dir}")
        try:
            return parse_conflist(found[0].read_bytes())
        except (OSError, BadConflist) as error:
            raise NotReady(f"{found[0]}: {error}") from None

    def _file(self, sandbox: str) -> Path:
        return self._state_dir / f"{sandbox}.json"

    def _read(self, sandbox: str) -> CniRecord | None:
        try:
            return msgspec.json.decode(self._file(sandbox).read_bytes(), type=CniRecord)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise NotReady(f"{self._file(sandbox)}: {error}") from None

    def _write(self, record: CniRecord) -> None:
        path = self._file(record.request.sandbox)
        beside = path.with_suffix(".new")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            beside.write_bytes(msgspec.json.encode(record))
            os.replace(beside, path)
        except OSError as error:
            raise NotReady(f"{path}: {error.strerror or error}") from None

    async def _run(self, one: PluginCall) -> bytes:
        program = next((Path(folder, one.plugin) for folder in self._bin_dirs.split(":") if _holds(folder, one)), None)
        if program is None:
            raise NotReady(f"CNI plugin {one.plugin} is in none of {self._bin_dirs}")
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            program, stdin=pipe, stdout=pipe, stderr=pipe, env={"PATH": os.environ.get("PATH", ""), **one.environment}
        )
        try:
            async with asyncio.timeout(PLUGIN_SECONDS):
                printed, complaint = await process.communicate(one.text)
        except TimeoutError:
            raise NotReady(f"CNI plugin {one.plugin}: no answer within {PLUGIN_SECONDS:.0f} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise _error(one, printed, complaint)
        return printed


def _holds(folder: str, one: PluginCall) -> bool:
    return os.access(Path(folder, one.plugin), os.X_OK)


def _inode(path: str) -> int | None:
    try:
        return os.stat(path).st_ino
    except OSError:
        return None


def _error(one: PluginCall, printed: bytes, complaint: bytes) -> DriverError:
    verb = one.environment["CNI_COMMAND"]
    try:
        told = msgspec.json.decode(printed, type=dict[str, Any])
    except msgspec.DecodeError:
        told = {"msg": (complaint or printed).decode(errors="replace").strip()[:200]}
    words = " ".join(str(told[key]) for key in ("msg", "details") if told.get(key))
    kind = NotReady if told.get("code") == TRY_LATER else Refused
    return kind(f"CNI plugin {one.plugin} {verb}: {words}")
