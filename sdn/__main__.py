"""Command line of `podlane-sdn`."""

from __future__ import annotations

import sys

from api.client.kubeconfig import BadKubeconfig
from reconcile.config_file import load, read
from reconcile.daemon import run
from reconcile.imports import without_system_authorities
from reconcile.malloc import frozen_imports
from reconcile.reload import Reloader
from sdn.config import Settings
from sdn.config_files import file_problems

PROG, FILE = "podlane-sdn", "/etc/podlane/sdn.yaml"


def main() -> int:
    """Entry point of the command."""
    settings = load(Settings, PROG, FILE, file_problems=file_problems)
    with frozen_imports(), without_system_authorities():
        from sdn.app import serve  # noqa: PLC0415
    try:
        return run(lambda: serve(settings), settings.log_level, lambda: Reloader(settings, _read_again))
    except BadKubeconfig as error:
        sys.stderr.write(f"podlane-sdn: {error}\n")
        return 1


def _read_again() -> Settings:
    return read(Settings, PROG, FILE, file_problems=file_problems)


if __name__ == "__main__":
    sys.exit(main())
