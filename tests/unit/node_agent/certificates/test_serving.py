"""The serving certificate of the kubelet API."""

import asyncio
import datetime
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from api.client.client import Client
from api.client.kubeconfig import Kubeconfig
from api.pki import keys
from api.pki.pem import Certificate, Subject, pem_blocks
from node_agent.certificates.serving import ServingCertificate
from node_agent.config import Settings
from reconcile.errors import Refused

NOW = datetime.datetime.now(datetime.UTC)


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime.datetime:
        return self.now


def make_settings(folder: Path) -> Settings:
    return Settings(node_name="n1", node_ip="10.245.2.3", state_dir=str(folder), server_tls_bootstrap=False)


def serving(settings: Settings, clock: Clock) -> ServingCertificate:
    return ServingCertificate(settings, Client(Kubeconfig("http://127.0.0.1:9", b"")), clock)


@asynccontextmanager
async def listening(certificate: ServingCertificate) -> AsyncIterator[int]:
    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(close, "127.0.0.1", 0, ssl=certificate.context())
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


async def served_certificate(port: int) -> Certificate:
    """Return the certificate that the server presents to a client."""

    def connect() -> bytes:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with socket.create_connection(("127.0.0.1", port)) as raw, context.wrap_socket(raw) as tls:
            return tls.getpeercert(binary_form=True) or b""

    return keys.parse_certificate(ssl.DER_cert_to_PEM_cert(await asyncio.to_thread(connect)).encode())


async def test_serving_certificate_is_self_signed_and_kept_by_default(tmp_path: Path) -> None:
    clock = Clock()
    for _ in range(2):
        certificate = serving(make_settings(tmp_path), clock)
        await certificate.load()
        async with listening(certificate) as port:
            served = await served_certificate(port)
    assert served.subject == Subject(f"n1@{int(NOW.timestamp())}", (), ("n1",), ("10.245.2.3",))
    (stored,) = (tmp_path / "pki").iterdir()
    assert stored.stat().st_mode & 0o777 == 0o600
    assert keys.parse_certificate(stored.read_bytes()) == served


async def test_new_serving_certificate_is_used_by_a_running_listener(tmp_path: Path) -> None:
    clock = Clock()
    certificate = serving(make_settings(tmp_path), clock)
    await certificate.load()
    async with listening(certificate) as port:
        first = await served_certificate(port)
        clock.now = NOW + datetime.timedelta(days=200)
        await certificate.renew()
        assert await served_certificate(port) == first
        clock.now = NOW + datetime.timedelta(days=364)
        await certificate.renew()
        assert (await served_certificate(port)).subject.user == f"n1@{int(clock.now.timestamp())}"


def write(folder: Path, name: str) -> None:
    key = keys.generate_key()
    (folder / "tls.key").write_bytes(key)
    (folder / "tls.crt").write_bytes(keys.self_signed(key, Subject(name, (), (name,)), NOW))


async def test_configured_certificate_files_are_served_and_reloaded(tmp_path: Path) -> None:
    settings = replace(
        make_settings(tmp_path), tls_cert_file=str(tmp_path / "tls.crt"), tls_private_key_file=str(tmp_path / "tls.key")
    )
    write(tmp_path, "one")
    certificate = serving(settings, Clock())
    await certificate.load()
    async with listening(certificate) as port:
        assert (await served_certificate(port)).subject.user == "one"
        write(tmp_path, "two")
        await certificate.renew()
        assert (await served_certificate(port)).subject.user == "two"
        (tmp_path / "tls.key").write_bytes(keys.generate_key())
        with pytest.raises(Refused, match=r"tls\.crt"):
            await certificate.renew()
        assert (await served_certificate(port)).subject.user == "two"


async def test_missing_certificate_files_are_rejected(tmp_path: Path) -> None:
    settings = replace(make_settings(tmp_path), tls_cert_file="/nowhere.crt", tls_private_key_file="/nowhere.key")
    with pytest.raises(Refused, match=r"/nowhere\.crt and /nowhere\.key"):
        await serving(settings, Clock()).load()


async def test_first_pass_creates_a_certificate_and_wakes_waiters(tmp_path: Path) -> None:
    certificate = serving(make_settings(tmp_path), Clock())
    waiting = asyncio.create_task(certificate.loaded())
    await asyncio.sleep(0)
    assert not waiting.done()
    await certificate.renew()
    async with asyncio.timeout(30):
        await waiting
    async with listening(certificate) as port:
        assert (await served_certificate(port)).subject.dns_names == ("n1",)


async def test_stored_certificate_without_its_key_is_replaced(tmp_path: Path) -> None:
    await serving(make_settings(tmp_path), Clock()).load()
    stored = tmp_path / "pki" / "serving-self-signed.pem"
    before = pem_blocks(stored.read_bytes(), "CERTIFICATE")
    stored.write_bytes(before)
    await serving(make_settings(tmp_path), Clock()).load()
    assert pem_blocks(stored.read_bytes(), "CERTIFICATE") != before


def test_certificate_file_without_key_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="tlsPrivateKeyFile"):
        Settings(node_name="n1", node_ip="10.245.2.3", state_dir=str(tmp_path), tls_cert_file="/x")
