"""Keys, signing requests, certificates, and when they are renewed."""

from __future__ import annotations

import datetime

import pytest

from api.pki import keys
from api.pki.pem import BadPem, CertificateRequest, Subject, pem_blocks
from node_agent.certificates import csr

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
SUBJECT = Subject("system:node:n1", ("system:nodes",), ("n1",), ("10.0.0.1", "fd00::1"))


def test_csr_and_certificate_carry_their_inputs() -> None:
    key = keys.generate_key()
    assert keys.parse_request(keys.create_request(key, SUBJECT)) == CertificateRequest(SUBJECT, ())
    signed = keys.self_signed(key, SUBJECT, NOW)
    assert keys.parse_certificate(signed).subject == SUBJECT
    assert keys.matches_certificate(key, signed)
    assert not keys.matches_certificate(keys.generate_key(), signed)


@pytest.mark.parametrize(
    "pem", [b"", b"x", b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"]
)
def test_data_that_is_no_csr_is_rejected(pem: bytes) -> None:
    with pytest.raises(BadPem):
        keys.parse_request(pem)
    with pytest.raises(BadPem):
        keys.parse_certificate(pem)


def test_modified_csr_is_rejected() -> None:
    text = keys.create_request(keys.generate_key(), SUBJECT)
    actual = pem_blocks(text, "CERTIFICATE REQUEST").splitlines()
    broken = b"\n".join([*actual[:-2], actual[-2][:-8] + b"AAAA" + actual[-2][-4:], actual[-1]])
    with pytest.raises(BadPem):
        keys.parse_request(broken)


def test_pem_file_is_split_into_key_and_certificate() -> None:
    key = keys.generate_key()
    signed = keys.self_signed(key, SUBJECT, NOW)
    for both in (key + signed, signed + key, b"words\n" + signed + b"\n\n" + key):
        assert pem_blocks(both, "PRIVATE KEY") == key
        assert pem_blocks(both, "CERTIFICATE") == signed


def test_certificate_renewal_time_is_jittered_late_in_its_lifetime() -> None:
    moments = set()
    for _ in range(20):
        certificate = keys.parse_certificate(keys.self_signed(keys.generate_key(), SUBJECT, NOW))
        part = (csr.renewal_time(certificate) - certificate.not_before) / (
            certificate.not_after - certificate.not_before
        )
        assert 0.7 <= part <= 0.9
        assert not csr.is_renewal_due(certificate, csr.renewal_time(certificate) - datetime.timedelta(seconds=1))
        assert csr.is_renewal_due(certificate, csr.renewal_time(certificate))
        moments.add(part)
    assert len(moments) > 10
