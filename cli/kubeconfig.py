"""The kubeconfig of the commands: where it is, and the credentials of programs that it names."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from api.client.client import Client, OtherAuthority
from api.client.kubeconfig import BadKubeconfig, ExecPlugin, Kubeconfig
from cli.command import ADMIN
from lab.topology import SITE

HOME_FILE = Path(".kube/config")
LAB_FILE = Path(".lab/kubeconfig")
"""The lab's, in the directory in which `make lab` was run. It is read while that lab runs: a file of this name in a
folder from elsewhere could run programs of its own, and send files of the user to a server of its own.
"""

CONNECT_SECONDS = 10.0

CREDENTIAL_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument --kubeconfig of commands that need a master."""
    order = f"KUBECONFIG, ~/{HOME_FILE}, {LAB_FILE}, {ADMIN}"
    parser.add_argument("--kubeconfig", metavar="FILE", default="", help=f"kubeconfig (the first of {order})")


def load(file: str = "") -> Kubeconfig:
    """Return the kubeconfig of a command, with credentials. `file` is that of --kubeconfig. Raises BadKubeconfig."""
    paths = (Path(file),) if file else default_files(os.environ, Path.cwd(), SITE.run_dir)
    kubeconfig = load_administrator(ADMIN) if paths == (Path(ADMIN),) else Kubeconfig.load_merged(paths)
    if kubeconfig.exec_plugin is not None:
        return _with_plugin_credentials(kubeconfig, kubeconfig.exec_plugin)
    return kubeconfig


def connect(kubeconfig: Kubeconfig) -> Client:
    """Return a client for a person, who waits less long than a daemon for a master that is stopped."""
    return Client(kubeconfig, connect_seconds=CONNECT_SECONDS)


def sentence(error: Exception) -> str:
    """Return what a person reads of an error."""
    if isinstance(error, OtherAuthority):
        return f"{error}; for a lab, `podlane lab kubeconfig --merge` writes the right one"
    return str(error)


def with_client(
    act: Callable[[Client, argparse.Namespace], Awaitable[None]],
) -> Callable[[argparse.Namespace], int]:
    """Return the function of a command that acts with a client of the master."""

    async def acting(arguments: argparse.Namespace) -> None:
        async with connect(load(arguments.kubeconfig)) as client:
            await act(client, arguments)

    def run(arguments: argparse.Namespace) -> int:
        asyncio.run(acting(arguments))
        return 0

    return run


def load_administrator(file: str) -> Kubeconfig:
    """Return the kubeconfig that a master has written. Raises BadKubeconfig.

    It may belong to the user of the master, and root uses it: what it names would be run and read by root.
    """
    path = Path(file)
    kubeconfig = Kubeconfig.load(path)
    try:
        owners = {path.parent.stat().st_uid, path.stat().st_uid} - {0, os.geteuid()}
    except OSError as error:
        raise BadKubeconfig(f"{path}: {error.strerror}") from None
    if owners and (kubeconfig.exec_plugin is not None or len(kubeconfig.files) > 1):
        found = f"{path} belongs to user {min(owners)}, and names a program or other files"
        raise BadKubeconfig(
            f"{found}; what the master writes has its credentials in it: remove it, and restart the master"
        )
    return kubeconfig


def default_files(environment: Mapping[str, str], folder: Path, lab: Path) -> Sequence[Path]:
    """Return the files to read without --kubeconfig. Raises BadKubeconfig if there are none.

    The files of KUBECONFIG are merged. Of the others, the first that exists is read. `folder` is the current directory,
    `lab` that of the running lab.
    """
    named = named_files(environment)
    if named:
        return named
    candidates = [home_file(environment), folder / LAB_FILE, Path(ADMIN)]
    for candidate in candidates:
        if os.access(candidate, os.F_OK):
            _refuse_foreign_lab(candidate, folder, lab)
            return (candidate,)
    looked_for = ", ".join(map(str, candidates))
    raise BadKubeconfig(f"KUBECONFIG is not set, and there is no {looked_for}; --kubeconfig FILE names another")


def home_file(environment: Mapping[str, str]) -> Path:
    """Return ~/.kube/config."""
    home = environment.get("HOME")
    return (Path(home) if home else Path.home()) / HOME_FILE


def writable_file(environment: Mapping[str, str]) -> Path:
    """Return the file to which new entries go: the first of KUBECONFIG, or ~/.kube/config."""
    named = named_files(environment)
    return named[0] if named else home_file(environment)


def named_files(environment: Mapping[str, str]) -> list[Path]:
    """Return the files of KUBECONFIG."""
    return [Path(word) for word in environment.get("KUBECONFIG", "").split(os.pathsep) if word]


def _refuse_foreign_lab(file: Path, folder: Path, lab: Path) -> None:
    """Raise BadKubeconfig for the kubeconfig of a lab that is not the running one."""
    if file == folder / LAB_FILE and file.parent.resolve() != lab.resolve():
        raise BadKubeconfig(f"{file} is not of the running lab; --kubeconfig {file} accepts it")


def _with_plugin_credentials(kubeconfig: Kubeconfig, plugin: ExecPlugin) -> Kubeconfig:
    """Run the program that a kubeconfig names, and return the kubeconfig with the credentials that it prints."""
    status = _run_plugin(plugin)
    values = {key: status.get(key) or "" for key in ("token", "clientCertificateData", "clientKeyData")}
    if not any(values.values()) or not all(isinstance(value, str) for value in values.values()):
        found = "has no token and no clientCertificateData"
        raise BadKubeconfig(f"{plugin.where}: the status that {plugin.command} prints {found}; one is needed")
    return replace(
        kubeconfig,
        token=values["token"] or kubeconfig.token,
        certificate=values["clientCertificateData"].encode() or kubeconfig.certificate,
        key=values["clientKeyData"].encode() or kubeconfig.key,
        exec_plugin=None,
        source=None,
        files=(),
    )


def _run_plugin(plugin: ExecPlugin) -> dict[str, Any]:
    """Return the status that a program prints. Raises BadKubeconfig."""
    where = f"{plugin.where}: exec"
    if plugin.api_version not in CREDENTIAL_VERSIONS:
        accepted = " or ".join(CREDENTIAL_VERSIONS)
        raise BadKubeconfig(f"{where} has the apiVersion {plugin.api_version!r}; {accepted} is accepted")
    command = str(plugin.folder / plugin.command) if "/" in plugin.command else plugin.command
    program = shutil.which(command)
    if program is None:
        hint = f" ({' '.join(plugin.install_hint.split())})" if plugin.install_hint else ""
        raise BadKubeconfig(f"{where} names the program {command!r}, which is not found; install it{hint}")
    interactive = sys.stdin.isatty()
    request = {"kind": "ExecCredential", "apiVersion": plugin.api_version, "spec": {"interactive": interactive}}
    environment = {
        **os.environ,
        **dict(plugin.environment),
        "KUBERNETES_EXEC_INFO": msgspec.json.encode(request).decode(),
    }
    stdin = None if interactive else subprocess.DEVNULL
    try:
        done = subprocess.run(
            [program, *plugin.arguments], stdin=stdin, stdout=subprocess.PIPE, env=environment, check=False
        )
    except OSError as error:
        raise BadKubeconfig(f"{where}: {program}: {error.strerror}; a program is accepted") from None
    if done.returncode:
        raise BadKubeconfig(f"{where}: {program} ended with {done.returncode}; 0 is accepted")
    try:
        answer = msgspec.json.decode(done.stdout)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadKubeconfig(f"{where}: {program} does not print JSON; an ExecCredential is accepted") from None
    status = answer.get("status") if isinstance(answer, dict) else None
    if not isinstance(status, dict) or answer.get("apiVersion") != plugin.api_version:
        accepted = f"an ExecCredential of {plugin.api_version} with a status"
        raise BadKubeconfig(f"{where}: {program} prints something else; {accepted} is accepted")
    return status
