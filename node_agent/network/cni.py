"""The network `cni`: configuration lists, plugin calls, records. Driver.

https://www.cni.dev/docs/spec/: the plugins of a list are called in order for ADD and CHECK, in reverse order for DEL.
For ADD, each plugin gets the result of the plugin before it. CHECK and DEL get the result of the whole ADD.
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
from node_agent.network.plugin import NO_METRICS
from reconcile import atomic_file
from reconcile.errors import DriverError, Gone, NotReady, Refused, os_errors_as

SUPPORTED_VERSIONS = ("0.4.0", "1.0.0")

ERROR_TRY_AGAIN_LATER = 11
"""Error code of the CNI specification for a temporary failure."""

MAX_BURST = 2**31 - 1
"""Largest burst in bits that the bandwidth plugin accepts. kubelet sends it, too."""

PLUGIN_TIMEOUT_SECONDS = 60.0


class InvalidConflist(ValueError):
    """A file that is no accepted network configuration list. The message says what was found and what is accepted."""


class Conflist(msgspec.Struct, frozen=True, rename="camel"):
    """A network configuration list. `plugins` are the configurations as they are in the file."""

    name: str
    cni_version: str
    plugins: tuple[dict[str, Any], ...]
    disable_check: bool = False


class CniRecord(msgspec.Struct, frozen=True):
    """The stored record of one sandbox. It is written before ADD, and again with the result of ADD.

    `inode` is that of the network namespace, because the path may lead to another namespace at the time of DEL.
    """

    network: Conflist
    request: AttachRequest
    inode: int
    result: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class PluginCall:
    """One execution of a plugin: its name, its environment and its standard input."""

    plugin: str
    environment: Mapping[str, str]
    stdin: bytes


def parse_conflist(text: bytes) -> Conflist:
    """Parse the content of a *.conflist file. Raises InvalidConflist."""
    try:
        conflist = msgspec.json.decode(text, type=Conflist)
    except msgspec.DecodeError as error:
        raise InvalidConflist(f"{error}; a network configuration list is accepted") from None
    if conflist.cni_version not in SUPPORTED_VERSIONS:
        accepted = " or ".join(SUPPORTED_VERSIONS)
        raise InvalidConflist(f"cniVersion is {conflist.cni_version!r}; {accepted} is accepted")
    if not conflist.plugins or not all(isinstance(plugin.get("type"), str) for plugin in conflist.plugins):
        raise InvalidConflist("plugins: at least one, each with a type, is accepted")
    if any("/" in plugin["type"] for plugin in conflist.plugins):
        raise InvalidConflist("plugins: a type is the name of a file in cniBinDirs")
    return conflist


def plugin_call(
    command: str,
    record: CniRecord,
    index: int,
    cni_path: str,
    prev_result: Mapping[str, Any] | None,
    netns: str | None = None,
) -> PluginCall:
    """Return the call of one plugin of a list.

    `netns` replaces the namespace path of the request; it is empty if the namespace is gone.
    """
    network = record.network
    request = record.request
    plugin = network.plugins[index]
    arguments = {
        "IgnoreUnknown": "1",
        "K8S_POD_NAMESPACE": request.namespace,
        "K8S_POD_NAME": request.name,
        "K8S_POD_INFRA_CONTAINER_ID": request.sandbox,
        "K8S_POD_UID": request.uid,
    }
    environment = {
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": request.sandbox,
        "CNI_NETNS": request.netns if netns is None else netns,
        "CNI_IFNAME": request.ifname,
        "CNI_PATH": cni_path,
        "CNI_ARGS": ";".join(f"{key}={value}" for key, value in arguments.items()),
    }
    config: dict[str, Any] = {key: value for key, value in plugin.items() if key != "capabilities"}
    config["name"] = network.name
    config["cniVersion"] = network.cni_version
    runtime_config = _runtime_config(plugin, request)
    if runtime_config:
        config["runtimeConfig"] = runtime_config
    if prev_result is not None:
        config["prevResult"] = prev_result
    return PluginCall(plugin["type"], environment, msgspec.json.encode(config))


def attachment_from_result(result: Mapping[str, Any]) -> Attachment:
    """Return the attachment that the result of a whole ADD describes. Its `ip` is empty if the pod got no address."""
    address: Mapping[str, Any] = next(iter(result.get("ips", ())), {})
    interfaces = result.get("interfaces", ())
    pod_interface: Mapping[str, Any] = next((entry for entry in interfaces if entry.get("sandbox")), {})
    host_interface: Mapping[str, Any] = next((entry for entry in interfaces if not entry.get("sandbox")), {})
    return Attachment(
        ip=address.get("address", ""),
        gateway=address.get("gateway", ""),
        mac=pod_interface.get("mac", ""),
        mtu=pod_interface.get("mtu", 0),
        host_interface=host_interface.get("name", ""),
    )


class CniNetwork:
    """The network `cni`: a PodNetwork. The first list of `conf_dir`, by file name, is the network.

    `bin_dirs` are the plugins' directories, separated by colons. `state_dir` has a record for each attached sandbox.
    """

    def __init__(self, conf_dir: Path, bin_dirs: str, state_dir: Path) -> None:
        self._conf_dir = conf_dir
        self._bin_dirs = bin_dirs
        self._state_dir = state_dir

    async def attach(self, request: AttachRequest) -> Attachment:
        """Run ADD, or CHECK if the sandbox was added before. Raises Gone if the result of ADD no longer exists."""
        record = self._read_record(request.sandbox)
        if record is not None and record.result is not None:
            await self._check(record, record.result)
            return attachment_from_result(record.result)
        if record is not None:
            await self.detach(request.sandbox)
        inode = _inode(request.netns)
        if inode is None:
            raise Gone(f"sandbox {request.sandbox}: there is no network namespace {request.netns}")
        record = CniRecord(self._load_network(), request, inode)
        self._write_record(record)
        try:
            result = await self._add(record)
        except DriverError:
            with contextlib.suppress(DriverError):
                await self.detach(request.sandbox)
            raise
        self._write_record(msgspec.structs.replace(record, result=result))
        return attachment_from_result(result)

    async def detach(self, sandbox: str) -> None:
        """Run DEL of every plugin, the last one first, with the configuration that ADD had."""
        record = self._read_record(sandbox)
        if record is None:
            return
        netns = record.request.netns if _inode(record.request.netns) == record.inode else ""
        for index in reversed(range(len(record.network.plugins))):
            await self._run(plugin_call("DEL", record, index, self._bin_dirs, record.result, netns))
        self._record_path(sandbox).unlink(missing_ok=True)

    async def status(self) -> NetworkStatus:
        """Return that the network is ready. Raises NotReady if there is no valid configuration list."""
        self._load_network()
        return NetworkStatus(ready=True)

    async def list_sandboxes(self) -> frozenset[str]:
        """Return the IDs of all sandboxes that have a record: a plugin may have run for them."""
        return frozenset(path.stem for path in self._state_dir.glob("*.json"))

    async def metrics(self) -> bytes:
        """Raise Gone: plugins are programs that end."""
        raise Gone(NO_METRICS)

    async def _add(self, record: CniRecord) -> dict[str, Any]:
        result: dict[str, Any] | None = None
        for index, plugin in enumerate(record.network.plugins):
            text = await self._run(plugin_call("ADD", record, index, self._bin_dirs, result))
            try:
                result = msgspec.json.decode(text, type=dict[str, Any])
            except msgspec.DecodeError as error:
                raise Refused(f"CNI plugin {plugin['type']}: its result: {error}") from None
        return result or {}

    async def _check(self, record: CniRecord, result: dict[str, Any]) -> None:
        if record.network.disable_check:
            return
        if _inode(record.request.netns) != record.inode:
            raise Gone(f"sandbox {record.request.sandbox} has lost its network namespace")
        for index in range(len(record.network.plugins)):
            try:
                await self._run(plugin_call("CHECK", record, index, self._bin_dirs, result))
            except Refused as error:
                raise Gone(str(error)) from None

    def _load_network(self) -> Conflist:
        files = sorted(self._conf_dir.glob("*.conflist"))
        if not files:
            raise NotReady(f"no network for pods: there is no *.conflist in {self._conf_dir}")
        try:
            return parse_conflist(files[0].read_bytes())
        except (OSError, InvalidConflist) as error:
            raise NotReady(f"{files[0]}: {error}") from None

    def _record_path(self, sandbox: str) -> Path:
        return self._state_dir / f"{sandbox}.json"

    def _read_record(self, sandbox: str) -> CniRecord | None:
        path = self._record_path(sandbox)
        try:
            return msgspec.json.decode(path.read_bytes(), type=CniRecord)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise NotReady(f"{path}: {error}") from None

    def _write_record(self, record: CniRecord) -> None:
        path = self._record_path(record.request.sandbox)
        with os_errors_as(NotReady, path):
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_file.write(path, msgspec.json.encode(record), atomic_file.READABLE, durable=False)

    async def _run(self, call: PluginCall) -> bytes:
        """Run a plugin and return its output. Raises NotReady, Refused."""
        programs = (Path(directory, call.plugin) for directory in self._bin_dirs.split(":"))
        program = next((path for path in programs if os.access(path, os.X_OK)), None)
        if program is None:
            raise NotReady(f"CNI plugin {call.plugin} is in none of {self._bin_dirs}")
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            program, stdin=pipe, stdout=pipe, stderr=pipe, env={"PATH": os.environ.get("PATH", ""), **call.environment}
        )
        try:
            async with asyncio.timeout(PLUGIN_TIMEOUT_SECONDS):
                stdout, stderr = await process.communicate(call.stdin)
        except TimeoutError:
            raise NotReady(f"CNI plugin {call.plugin}: no answer within {PLUGIN_TIMEOUT_SECONDS:.0f} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise _plugin_error(call, stdout, stderr)
        return stdout


def _runtime_config(plugin: Mapping[str, Any], request: AttachRequest) -> dict[str, Any]:
    """Return the `runtimeConfig` of a plugin: the pod's bandwidth limits, if the plugin has that capability."""
    if not plugin.get("capabilities", {}).get("bandwidth"):
        return {}
    limits: dict[str, int] = {}
    for name, bits in (("ingress", request.ingress_bandwidth), ("egress", request.egress_bandwidth)):
        if bits:
            limits[f"{name}Rate"] = bits
            limits[f"{name}Burst"] = MAX_BURST
    return {"bandwidth": limits} if limits else {}


def _inode(path: str) -> int | None:
    try:
        return os.stat(path).st_ino
    except OSError:
        return None


def _plugin_error(call: PluginCall, stdout: bytes, stderr: bytes) -> DriverError:
    try:
        error = msgspec.json.decode(stdout, type=dict[str, Any])
    except msgspec.DecodeError:
        error = {"msg": (stderr or stdout).decode(errors="replace").strip()[:200]}
    message = " ".join(str(error[key]) for key in ("msg", "details") if error.get(key))
    error_type = NotReady if error.get("code") == ERROR_TRY_AGAIN_LATER else Refused
    return error_type(f"CNI plugin {call.plugin} {call.environment['CNI_COMMAND']}: {message}")
