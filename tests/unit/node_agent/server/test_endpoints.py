"""The settings in responses of the server."""

from __future__ import annotations

from unittest.mock import Mock

import msgspec
import pytest
from aiohttp.test_utils import make_mocked_request

from node_agent.config import Settings
from node_agent.server.endpoints import StatusHandlers


@pytest.mark.parametrize(
    ("url", "redacted_url"),
    [
        ("", ""),
        ("https://h/pods", "https://h/pods"),
        ("https://h/a@b", "https://h/a@b"),
        ("https://me:Secret@h:80/pods", "https://<masked>@h:80/pods"),
        ("https://me:Secret@Secret@h/pods?token=Secret", "https://<masked>@h/pods?<masked>"),
        ("http://Secret@h", "http://<masked>@h"),
    ],
)
async def test_configz_redacts_manifest_url_secrets(url: str, redacted_url: str) -> None:
    settings = Settings("n", "10.0.0.1", manifest_url=url, manifest_url_headers={"Authorization": "Bearer Secret"})
    routes = {route.path: route for route in StatusHandlers(settings, Mock(), Mock(), Mock(), Mock()).routes()}
    answer = await routes["/configz"].handler(make_mocked_request("GET", "/configz"))
    body = bytes(answer.body or b"")  # type: ignore[attr-defined]
    assert b"Secret" not in body
    config = msgspec.json.decode(body)["kubeletconfig"]
    assert config["manifestUrl"] == redacted_url
    assert config["manifestUrlHeaders"] == {"Authorization": "<masked>"}
    assert config["nodeName"] == "n"
