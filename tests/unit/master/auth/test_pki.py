"""The master's CA and keys, created by a process that is killed before any of its file operations."""

from __future__ import annotations

import contextlib
import datetime
from pathlib import Path

import pytest

from api.client.kubeconfig import Kubeconfig
from master.auth import pki, service_account_tokens
from tests.testbed.docker.fake import AgentKilled
from tests.testbed.fault_injection import INJECTOR

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
SERVER = "https://127.0.0.1:8443"


def _start(root: Path) -> None:
    authority = pki.authority(root / "pki", NOW)
    service_account_tokens.load_token_signer(root / "pki")
    pki.server_certificate(authority, root / "pki", ["127.0.0.1"], NOW)
    pki.admin_kubeconfig(authority, root / "admin.kubeconfig", SERVER, NOW)


def _acts(root: Path) -> int:
    with INJECTOR.after(10_000):
        _start(root)
    return INJECTOR.acts


def test_pki_setup_killed_at_any_file_operation_is_completed(tmp_path: Path) -> None:
    _start(tmp_path / "first")  # so that nothing is imported while acts are counted
    acts = _acts(tmp_path / "whole")
    assert acts > 10
    for number in range(acts):
        root = tmp_path / str(number)
        with pytest.raises(AgentKilled), INJECTOR.after(number):
            _start(root)
        # Killed once more, at another place, before a start gets through.
        with contextlib.suppress(AgentKilled), INJECTOR.after(acts - number):
            _start(root)
        _start(root)
        authority = pki.authority(root / "pki", NOW)
        kubeconfig = Kubeconfig.load(root / "admin.kubeconfig")
        assert kubeconfig.ca == authority.pem == (root / "pki" / "ca.crt").read_bytes()
        kubeconfig.ssl_context()
        assert not list(root.rglob("*.new"))


def test_existing_pki_files_are_kept(tmp_path: Path) -> None:
    _start(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    _start(tmp_path)
    changed = {path.name for path, data in before.items() if path.read_bytes() != data}
    assert changed == {"server.pem"}
