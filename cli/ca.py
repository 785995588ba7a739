"""`podlane ca`: changes the certificate authority of a cluster, on the host of its master.

Three steps, each followed by a restart of the master: the new authority is trusted beside the old one, it signs, the
old one is not trusted any more. The nodes report what they trust, and which authority signed their certificates.

The files belong to the user of the master, and are read and written as that user: root would follow its links.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from api.core.cluster_info import ISSUERS_ANNOTATION, TRUSTED_ANNOTATION
from api.core.node import Node
from api.pki import keys
from api.pki.authority_files import CERTIFICATE, KEY, NEXT_CERTIFICATE, NEXT_KEY, PREVIOUS_CERTIFICATE
from cli import kubeconfig
from cli.command import InputError, add_command
from reconcile import atomic_file

STATE_DIR = "/var/lib/podlane/master"
RESTART = "Restart the master: systemctl restart podlane-master"


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Add the commands under `podlane ca`."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    status = add_command(commands, "status", "show the authorities of the cluster, and what the nodes have", _status)
    rotate = add_command(commands, "rotate", "step 1: create an authority, trusted beside the present one", _rotate)
    activate = add_command(commands, "activate", "step 2: let the new authority sign", _activate)
    retire = add_command(commands, "retire", "step 3: trust the previous authority no more", _retire)
    for command in (activate, retire):
        command.add_argument("--force", action="store_true", help="also if nodes are not ready for it: they are lost")
    for command in (status, rotate, activate, retire):
        command.add_argument(
            "--state-dir", metavar="DIR", default=STATE_DIR, help="stateDir of the master (%(default)s)"
        )
        if command is not rotate:
            kubeconfig.add_argument(command)


@dataclass(frozen=True, slots=True)
class NodeAuthorities:
    """What a node reports: fingerprints of the authorities that it trusts, and the identifiers of its issuers."""

    name: str
    trusted: tuple[str, ...]
    issuers: tuple[str, ...]

    def trusts(self, fingerprint: str) -> bool:
        """Return whether the node trusts an authority."""
        return fingerprint in self.trusted

    def has_only(self, issuer: str) -> bool:
        """Return whether all certificates of the node are of one authority."""
        return set(self.issuers) == {issuer}


def _status(arguments: argparse.Namespace) -> int:
    folder = _folder(arguments)
    nodes = _nodes(arguments)
    for file, what in ((CERTIFICATE, "signs"), (NEXT_CERTIFICATE, "new"), (PREVIOUS_CERTIFICATE, "previous")):
        with _as_owner(arguments):
            pem = (folder / file).read_bytes() if (folder / file).exists() else b""
        if pem:
            content = keys.parse_certificate(pem)
            trusting = sum(node.trusts(content.fingerprint) for node in nodes)
            issued = sum(node.has_only(keys.authority_ids(pem)[0]) for node in nodes)
            (key_hash,) = keys.certificates_by_key_hash(pem)
            until = f"{content.not_after:%Y-%m-%d}"
            print(f"{what}: {content.subject.user}, valid until {until}, {key_hash}")
            print(f"  trusted by {trusting} of {len(nodes)} nodes, which have {issued} times its certificates only")
    print(_next_step(folder))
    return 0


def _next_step(folder: Path) -> str:
    if (folder / NEXT_CERTIFICATE).exists():
        return "next: podlane ca activate, when all nodes trust the new authority"
    if (folder / PREVIOUS_CERTIFICATE).exists():
        return "next: podlane ca retire, when all nodes have certificates of the authority that signs"
    return "next: podlane ca rotate begins a change"


def _rotate(arguments: argparse.Namespace) -> int:
    folder = _folder(arguments)
    for file in (NEXT_CERTIFICATE, PREVIOUS_CERTIFICATE):
        if (folder / file).exists():
            raise InputError(f"{folder / file}: a change is under way. {_next_step(folder)}")
    key, certificate = keys.create_authority(datetime.datetime.now(datetime.UTC))
    # The key is first, so that there is never a certificate without its key.
    with _as_owner(arguments):
        _write(folder / NEXT_KEY, key, atomic_file.OWNER_ONLY)
        _write(folder / NEXT_CERTIFICATE, certificate, atomic_file.READABLE)
    print(f"{folder / NEXT_CERTIFICATE}: created. {RESTART}; then: podlane ca status")
    return 0


def _activate(arguments: argparse.Namespace) -> int:
    folder = _folder(arguments)
    if not (folder / NEXT_CERTIFICATE).exists():
        raise InputError(f"{folder} has no new authority. {_next_step(folder)}")
    with _as_owner(arguments):
        certificate, present = (folder / NEXT_CERTIFICATE).read_bytes(), (folder / CERTIFICATE).read_bytes()
    is_interrupted = present == certificate  # then no master answers
    if not is_interrupted and not arguments.force:
        fingerprint = keys.parse_certificate(certificate).fingerprint
        _require(_nodes(arguments), lambda node: node.trusts(fingerprint), "do not trust the new authority yet")
    with _as_owner(arguments):
        if not is_interrupted:
            _write(folder / PREVIOUS_CERTIFICATE, present, atomic_file.READABLE)
            _write(folder / CERTIFICATE, certificate, atomic_file.READABLE)
        if (folder / NEXT_KEY).exists():
            _write(folder / KEY, (folder / NEXT_KEY).read_bytes(), atomic_file.OWNER_ONLY)
        (folder / NEXT_CERTIFICATE).unlink()
        (folder / NEXT_KEY).unlink(missing_ok=True)
    print(f"the new authority signs. {RESTART}; then: podlane ca status")
    return 0


def _retire(arguments: argparse.Namespace) -> int:
    folder = _folder(arguments)
    if not (folder / PREVIOUS_CERTIFICATE).exists() or (folder / NEXT_CERTIFICATE).exists():
        raise InputError(f"{folder} has no previous authority. {_next_step(folder)}")
    if not arguments.force:
        with _as_owner(arguments):
            (issuer,) = keys.authority_ids((folder / CERTIFICATE).read_bytes())
        _require(_nodes(arguments), lambda node: node.has_only(issuer), "have certificates of the previous authority")
    with _as_owner(arguments):
        (folder / PREVIOUS_CERTIFICATE).unlink()
    print(f"the previous authority is removed. {RESTART}; then podlane-node-agent on each node")
    return 0


def _require(nodes: Iterable[NodeAuthorities], is_ready: Callable[[NodeAuthorities], bool], problem: str) -> None:
    """Raise InputError if some nodes are not ready for a step."""
    names = sorted(node.name for node in nodes if not is_ready(node))
    if names:
        remedy = "wait a minute, start these nodes, or remove them (podlane node remove); --force goes on without them"
        raise InputError(f"nothing was changed: {', '.join(names)} {problem}; {remedy}")


def _folder(arguments: argparse.Namespace) -> Path:
    """Return the directory of the authority. Raises InputError."""
    folder = Path(arguments.state_dir) / "pki"
    if os.geteuid() == 0 and not (folder / KEY).exists():
        raise InputError(
            f"there is no {folder / KEY}; --state-dir names the stateDir of the master, on the host of the master"
        )
    if not os.access(folder / KEY, os.R_OK):
        raise InputError(f"{folder / KEY} cannot be read; run this as root on the host of the master")
    return folder


@contextmanager
def _as_owner(arguments: argparse.Namespace) -> Iterator[None]:
    """Act as the owner of the state directory during the block. Raises InputError if a file is not the owner's."""
    user, groups = (os.geteuid(), os.getegid()), os.getgroups()
    owner = os.stat(arguments.state_dir)
    if user[0] == 0:
        os.setgroups([])
        os.setegid(owner.st_gid)
        os.seteuid(owner.st_uid)
    try:
        yield
    except PermissionError as error:
        raise InputError(
            f"{error.filename}: {error.strerror}; files of the owner of the directory are accepted"
        ) from None
    finally:
        if user[0] == 0:
            os.seteuid(user[0])
            os.setegid(user[1])
            os.setgroups(groups)


def _write(path: Path, data: bytes, mode: int) -> None:
    """Write a file. Raises OSError."""
    atomic_file.write(path, data, mode)


def _nodes(arguments: argparse.Namespace) -> Collection[NodeAuthorities]:
    async def read() -> list[NodeAuthorities]:
        async with kubeconfig.connect(kubeconfig.load(arguments.kubeconfig)) as client:
            return [_authorities(node) for node in (await client.list(Node)).items]

    return asyncio.run(read())


def _authorities(node: Node) -> NodeAuthorities:
    def listed(annotation: str) -> tuple[str, ...]:
        return tuple(filter(None, node.metadata.annotations.get(annotation, "").split(",")))

    return NodeAuthorities(node.metadata.name, listed(TRUSTED_ANNOTATION), listed(ISSUERS_ANNOTATION))
