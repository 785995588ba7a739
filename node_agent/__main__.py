"""Entry point of the node agent: reads the settings and runs the agent until it is stopped."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from api.client.kubeconfig import BadKubeconfig
from node_agent.config import Settings
from node_agent.config_files import file_problems
from reconcile.config_file import load, read
from reconcile.daemon import run
from reconcile.errors import Refused
from reconcile.imports import defer_package, without_system_authorities
from reconcile.malloc import frozen_imports
from reconcile.reload import Reloader

PROG, FILE = "podlane-node-agent", "/etc/podlane/node-agent.yaml"


def main() -> int:
    """Run the command. Return its exit code."""
    settings = load(Settings, PROG, FILE, file_problems=file_problems)
    Path(settings.state_dir).mkdir(parents=True, exist_ok=True)
    with frozen_imports(), without_system_authorities():
        defer_package("docker")
        from node_agent.app import serve  # noqa: PLC0415
    try:
        code = run(lambda: serve(settings), settings.log_level, lambda: Reloader(settings, _read_again))
    except (BadKubeconfig, Refused) as error:
        sys.stderr.write(f"podlane-node-agent: {error}\n")
        return 1
    # Exit without joining threads, because a thread may wait for a Docker that hangs. No thread has data to save.
    sys.stderr.flush()
    os._exit(code)


def _read_again() -> Settings:
    return read(Settings, PROG, FILE, file_problems=file_problems)


if __name__ == "__main__":
    sys.exit(main())
