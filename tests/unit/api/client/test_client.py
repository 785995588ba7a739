"""The client of the API server: paths of requests, and its errors."""

from __future__ import annotations

import socket
import ssl

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from api.client.client import Client, OtherAuthority, Unreachable, resource_path, unreachable
from api.client.kubeconfig import Kubeconfig
from api.core.node import Node
from api.core.pod import Pod


@pytest.mark.parametrize(
    ("namespace", "name", "subresource", "path"),
    [
        ("", "", "", "/api/v1/pods"),
        ("red", "", "", "/api/v1/namespaces/red/pods"),
        ("red", "a", "log", "/api/v1/namespaces/red/pods/a/log"),
        ("red", "a/log", "", "/api/v1/namespaces/red/pods/a%2Flog"),
        ("red/pods", "a", "", "/api/v1/namespaces/red%2Fpods/pods/a"),
    ],
)
def test_a_name_is_one_segment_of_a_path(namespace: str, name: str, subresource: str, path: str) -> None:
    assert resource_path(Pod, namespace, name, subresource) == path
    assert resource_path(Node, namespace, "a/b") == "/api/v1/nodes/a%2Fb"


HTTPS, HTTP = "https://10.245.2.2:8443", "http://10.245.2.2:8443"


KEY = ConnectionKey("10.245.2.2", 8443, True, True, None, None, None)


def not_verified(code: int, message: str) -> aiohttp.ClientConnectorCertificateError:
    error = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")
    error.verify_code, error.verify_message = code, message
    return aiohttp.ClientConnectorCertificateError(KEY, error)


@pytest.mark.parametrize(
    ("server", "error", "sentence"),
    [
        (HTTPS, OSError("no route"), f"{HTTPS} does not answer: no route"),
        (HTTPS, OSError(), f"{HTTPS} does not answer: OSError"),
        (
            HTTPS,
            aiohttp.ClientConnectorError(KEY, ConnectionRefusedError(111, "Connect call failed ('10.245.2.2', 8443)")),
            f"{HTTPS} does not answer: Connection refused",
        ),
        (
            HTTPS,
            aiohttp.ClientConnectorDNSError(KEY, socket.gaierror(-2, "Name or service not known")),
            f"{HTTPS} does not answer: Name or service not known",
        ),
        (HTTPS, TimeoutError(), f"{HTTPS} does not answer in time"),
        (HTTPS, aiohttp.ConnectionTimeoutError("Connection timeout"), f"{HTTPS} does not answer in time"),
        (
            HTTP,
            aiohttp.ServerDisconnectedError(),
            f"{HTTP} does not answer: Server disconnected; a master is accepted at https://",
        ),
        (HTTPS, aiohttp.ServerDisconnectedError(), f"{HTTPS} does not answer: Server disconnected"),
        (
            HTTPS,
            not_verified(20, "unable to get local issuer certificate"),
            f"{HTTPS}: its certificate is of another authority than that of the kubeconfig "
            "(unable to get local issuer certificate)",
        ),
        (HTTPS, not_verified(64, "IP address mismatch"), f"{HTTPS}: its certificate is for other names (IP address"),
        (HTTPS, not_verified(10, "expired"), f"{HTTPS}: its certificate is not valid now, or the clock of this host"),
        (HTTPS, not_verified(79, "invalid CA"), f"{HTTPS}: its certificate is not accepted (invalid CA)"),
    ],
)
def test_a_request_without_an_answer_says_why(server: str, error: Exception, sentence: str) -> None:
    found = unreachable(server, error)
    assert str(found).startswith(sentence)
    assert isinstance(found, OtherAuthority) == ("another authority" in sentence)


async def test_a_server_that_accepts_no_connection_is_left_after_a_time() -> None:
    """A stopped process has a backlog: the kernel accepts the connection, and nobody answers the TLS handshake."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = f"https://127.0.0.1:{silent.getsockname()[1]}"
        async with Client(Kubeconfig(server, b""), connect_seconds=0.2) as client:
            with pytest.raises(Unreachable, match=f"{server} does not answer in time"):
                await client.get(Node, "a")
