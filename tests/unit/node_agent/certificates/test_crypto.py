"""Keys and certificates by the separate crypto worker."""

from __future__ import annotations

import datetime

import pytest

from api.pki import keys
from api.pki.pem import BadPem, Subject
from node_agent.certificates import crypto
from reconcile.errors import NotReady

NOW = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
SUBJECT = Subject("system:node:n1", ("system:nodes",), ("n1",), ("10.0.0.1", "fd00::1"))


async def test_csr_is_for_the_held_key() -> None:
    first = await crypto.make_request(b"", SUBJECT, "x")
    assert keys.parse_request(first.request).subject == SUBJECT
    again = await crypto.make_request(first.key, SUBJECT, "x")
    assert (again.key, again.fingerprint) == (first.key, first.fingerprint)
    assert again.fingerprint == keys.key_fingerprint(first.key, "x")
    other_request = await crypto.make_request(first.key, SUBJECT, "y")
    assert other_request.fingerprint != first.fingerprint


async def test_invalid_key_file_is_replaced_by_a_new_key() -> None:
    request = await crypto.make_request(b"words", SUBJECT, "x")
    assert request.fingerprint == keys.key_fingerprint(request.key, "x")


async def test_self_signed_certificate_carries_its_inputs() -> None:
    pair = await crypto.self_signed_pair(SUBJECT, NOW)
    assert keys.matches_certificate(pair.key, pair.certificate)
    assert pair.info == keys.parse_certificate(pair.certificate)
    assert pair.info.subject == SUBJECT
    assert await crypto.inspect_certificate(pair.certificate) == pair.info
    assert await crypto.load_key_pair(pair.key, pair.certificate) == pair


async def test_key_pair_with_another_key_is_rejected() -> None:
    pair = await crypto.self_signed_pair(SUBJECT, NOW)
    with pytest.raises(BadPem, match="another key"):
        await crypto.load_key_pair(keys.generate_key(), pair.certificate)
    with pytest.raises(BadPem, match="not a private key"):
        await crypto.load_key_pair(b"", pair.certificate)
    with pytest.raises(BadPem, match="not a certificate"):
        await crypto.inspect_certificate(b"words")


async def test_crypto_worker_that_does_not_run_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crypto, "PROGRAM", "node_agent.certificates.nothing")
    with pytest.raises(NotReady, match="program for keys and certificates failed"):
        await crypto.inspect_certificate(b"words")
