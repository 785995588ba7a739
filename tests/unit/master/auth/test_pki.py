"""The master's CA and keys, created by a process that is killed before any of its file operations."""

from __future__ import annotations

import contextlib
import datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

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
    pki.front_proxy(root / "pki", NOW)
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
        proxy = pki.front_proxy(root / "pki", NOW)
        issuer = x509.load_pem_x509_certificate(proxy.authority.encode())
        x509.load_pem_x509_certificate(proxy.client.read_bytes()).verify_directly_issued_by(issuer)
        assert not list(root.rglob("*.new"))


def test_existing_pki_files_are_kept(tmp_path: Path) -> None:
    _start(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    _start(tmp_path)
    changed = {path.name for path, data in before.items() if path.read_bytes() != data}
    assert changed == {"server.pem", "front-proxy-client.pem"}


def test_front_proxy_has_an_authority_of_its_own_that_is_renewed_before_its_end(tmp_path: Path) -> None:
    cluster = pki.authority(tmp_path, NOW)
    first = pki.front_proxy(tmp_path, NOW)
    certificate = x509.load_pem_x509_certificate(first.client.read_bytes())
    assert certificate.subject.rfc4514_string() == "CN=front-proxy-client"
    own = x509.load_pem_x509_certificate(first.authority.encode())
    assert own.subject != cluster.certificate.subject
    assert not pki.is_issued_by(certificate.public_bytes(serialization.Encoding.DER), cluster.certificate)
    assert (first.client.stat().st_mode & 0o777, (tmp_path / "front-proxy-ca.key").stat().st_mode & 0o777) == (
        0o600,
        0o600,
    )
    assert pki.front_proxy(tmp_path, NOW).authority == first.authority
    near_end = own.not_valid_after_utc - datetime.timedelta(days=300)
    assert pki.front_proxy(tmp_path, near_end).authority != first.authority


def test_front_proxy_authority_that_is_damaged_is_replaced(tmp_path: Path) -> None:
    pki.authority(tmp_path, NOW)
    first = pki.front_proxy(tmp_path, NOW)
    (tmp_path / "front-proxy-ca.key").write_text("damaged")
    assert pki.front_proxy(tmp_path, NOW).authority != first.authority
