"""Large libraries are not imported by daemons that must stay small."""

from __future__ import annotations

import subprocess
import sys

import pytest

LARGE = {
    "node_agent": {"anyio.abc", "cryptography", "grpclib"},
    "sdn": {"cryptography", "grpclib"},
    "master": {"docker", "grpclib", "master.network_controller.app", "master.app", "prometheus_client"},
}


@pytest.mark.parametrize("daemon", LARGE)
def test_daemon_does_not_load_large_optional_libraries(daemon: str) -> None:
    program = f"import {daemon}.__main__, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    loaded = set(done.stdout.split())
    assert f"{daemon}.__main__" in loaded
    assert not loaded & LARGE[daemon]
