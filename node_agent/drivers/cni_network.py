"""Attaches sandboxes by executing the plugins of a CNI network."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any

import msgspec

from api.attach import Attachment, AttachRequest, NetworkStatus
from node_agent.cni import TRY_LATER, BadConflist, Call, Conflist, Record, attachment, call, conflist
from reconcile.errors import DriverError, Gone, NotReady, Refused

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
            return attachment(known.result)
        if known is not None:
            await self.detach(request.sandbox)
        inode = _inode(request.netns)
        if inode is None:
            raise Gone(f"sandbox {request.sandbox}: there is no network namespace {request.netns}")
        record = Record(self._network(), request, inode)
        self._write(record)
        try:
            result = await self._add(record)
        except DriverError:
            with contextlib.suppress(DriverError):
                await self.detach(request.sandbox)
            raise
        self._write(msgspec.structs.replace(record, result=result))
        return attachment(result)

    async def _add(self, record: Record) -> dict[str, Any]:
        result: dict[str, Any] | None = None
        for number in range(len(record.network.plugins)):
            text = await self._run(call("ADD", record, number, self._bin_dirs, result))
            try:
                result = msgspec.json.decode(text, type=dict[str, Any])
            except msgspec.DecodeError as error:
                raise Refused(f"CNI plugin {record.network.plugins[number]['type']}: its result: {error}") from None
        return result or {}

    async def _check(self, record: Record, result: dict[str, Any]) -> None:
        if record.network.disable_check:
            return
        if _inode(record.request.netns) != record.inode:
            raise Gone(f"sandbox {record.request.sandbox} has lost its network namespace")
        for number in range(len(record.network.plugins)):
            try:
                await self._run(call("CHECK", record, number, self._bin_dirs, result))
            except Refused as error:
                raise Gone(str(error)) from None

    async def detach(self, sandbox: str) -> None:
        """DEL by every plugin, the last one first, with the configuration that ADD had."""
        record = self._read(sandbox)
        if record is None:
            return
        netns = record.request.netns if _inode(record.request.netns) == record.inode else ""
        for number in reversed(range(len(record.network.plugins))):
            await self._run(call("DEL", record, number, self._bin_dirs, record.result, netns))
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
            return conflist(found[0].read_bytes())
        except (OSError, BadConflist) as error:
            raise NotReady(f"{found[0]}: {error}") from None

    def _file(self, sandbox: str) -> Path:
        return self._state_dir / f"{sandbox}.json"

    def _read(self, sandbox: str) -> Record | None:
        try:
            return msgspec.json.decode(self._file(sandbox).read_bytes(), type=Record)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise NotReady(f"{self._file(sandbox)}: {error}") from None

    def _write(self, record: Record) -> None:
        path = self._file(record.request.sandbox)
        beside = path.with_suffix(".new")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            beside.write_bytes(msgspec.json.encode(record))
            os.replace(beside, path)
        except OSError as error:
            raise NotReady(f"{path}: {error.strerror or error}") from None

    async def _run(self, one: Call) -> bytes:
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


def _holds(folder: str, one: Call) -> bool:
    return os.access(Path(folder, one.plugin), os.X_OK)


def _inode(path: str) -> int | None:
    try:
        return os.stat(path).st_ino
    except OSError:
        return None


def _error(one: Call, printed: bytes, complaint: bytes) -> DriverError:
    verb = one.environment["CNI_COMMAND"]
    try:
        told = msgspec.json.decode(printed, type=dict[str, Any])
    except msgspec.DecodeError:
        told = {"msg": (complaint or printed).decode(errors="replace").strip()[:200]}
    words = " ".join(str(told[key]) for key in ("msg", "details") if told.get(key))
    kind = NotReady if told.get("code") == TRY_LATER else Refused
    return kind(f"CNI plugin {one.plugin} {verb}: {words}")
