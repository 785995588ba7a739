"""`podlane lab kubeconfig`: prints the kubeconfig of the lab, or merges it into that of the user."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from api.client.kubeconfig import BadKubeconfig, Kubeconfig
from cli.kubeconfig import home_file, named_files
from lab.topology import SITE
from lab.up import running_lab
from reconcile import atomic_file

NAME = "podlane-lab"
"""The name of the lab's cluster, user and context in other kubeconfigs."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `podlane lab kubeconfig`."""
    target = "the first file of KUBECONFIG that is not the lab's own, or ~/.kube/config"
    parser.add_argument("--merge", action="store_true", help=f"add the context {NAME} to {target}, and make it current")
    parser.add_argument("--overwrite", action="store_true", help="replace entries of these names of another server")


def run(arguments: argparse.Namespace, state: Path) -> int:
    """Print or merge the kubeconfig. Returns the exit code. Raises LabError and BadKubeconfig."""
    source = next((file for file in (state / "kubeconfig", SITE.run_dir / "kubeconfig") if file.exists()), None)
    lab = Kubeconfig.load(source or running_lab().kubeconfig)
    if arguments.merge:
        file, own = merge_target(os.environ, {state.resolve(), SITE.run_dir.resolve()})
        print(merge(lab, file, overwrite=arguments.overwrite))
        for each in own:
            print(f"{each} of KUBECONFIG is a file of the lab and stays as it is")
    else:
        sys.stdout.write(lab.text(NAME, NAME))
    return 0


def merge_target(environment: Mapping[str, str], labs: Collection[Path]) -> tuple[Path, tuple[Path, ...]]:
    """Return the file to which the lab is added, and the files of KUBECONFIG that are passed over.

    These are in the directories `labs`: they are the lab's own, and those of its users would get the administrator.
    """
    named = named_files(environment)
    own = tuple(file for file in named if any(file.resolve().is_relative_to(lab) for lab in labs))
    return next((file for file in named if file not in own), home_file(environment)), own


def merge(lab: Kubeconfig, file: Path, *, overwrite: bool) -> str:
    """Add the lab to a file, and return what was done. Raises BadKubeconfig and OSError.

    Entries of the same names of another server are replaced only with `overwrite`.
    """
    target = file.resolve()  # a link stays a link
    existing = target.read_bytes() if target.exists() else b""
    try:
        conflicts = lab.conflicts(existing, NAME, NAME)
        text = lab.merged_into(existing, NAME, NAME)
    except BadKubeconfig as error:
        raise BadKubeconfig(f"{file}: {error}") from None
    if conflicts and not overwrite:
        problem = f"{file} has {', '.join(conflicts)}, not of the lab ({lab.server})"
        raise BadKubeconfig(f"{problem}; --overwrite replaces what has the name {NAME!r}")
    if text.encode() == existing:
        return f"{file} has the context {NAME} of this lab, which is the current one"
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    atomic_file.write(target, text.encode())
    replaced = f", in place of {', '.join(conflicts)}" if conflicts else ""
    return f"{file} has the context {NAME} of {lab.server}{replaced}; it is the current one"
