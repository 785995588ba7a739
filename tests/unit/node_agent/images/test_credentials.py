"""Selection of registry credentials for an image."""

from __future__ import annotations

import base64

import msgspec
import pytest

from api.core.config import Secret
from node_agent.images.credentials import Credential, credentials_for_image, split_registry

HIM = Credential("him", "his")


def secret(url: str, key: str = ".dockerconfigjson", **auth: str) -> Secret:
    auths = {url: auth or HIM._asdict()}
    document = {"auths": auths} if key == ".dockerconfigjson" else auths
    return Secret(data={key: msgspec.json.encode(document)})


@pytest.mark.parametrize(
    ("url", "image", "fits"),
    [
        ("registry.example:5000", "registry.example:5000/web:1", True),
        ("registry.example:5000", "registry.example/web:1", False),
        ("https://registry.example/v2/", "registry.example/red/web", True),
        ("registry.example/red", "registry.example/red/web", True),
        ("registry.example/red", "registry.example/redder/web", False),
        ("*.example", "registry.example/web", True),
        ("*.example", "a.registry.example/web", False),
        ("https://index.docker.io/v1/", "busybox", True),
        ("docker.io", "red/web", True),
        ("docker.io", "localhost/web", False),
    ],
)
def test_credential_matches_by_registry_and_path(url: str, image: str, fits: bool) -> None:
    assert credentials_for_image(image, [secret(url)]) == ((HIM,) if fits else ())


def test_docker_config_formats_are_parsed() -> None:
    encoded = base64.b64encode(b"him:his").decode()
    assert credentials_for_image("r.io/a", [secret("r.io", ".dockercfg")]) == (HIM,)
    assert credentials_for_image("r.io/a", [secret("r.io", auth=encoded)]) == (HIM,)
    assert (
        credentials_for_image("r.io/a", [secret("r.io", auth="%"), Secret(data={".dockercfg": b"{"}), Secret()]) == ()
    )


def test_credentials_are_ordered_by_path_length_without_duplicates() -> None:
    near = secret("r.io/red", username="near", password="x")
    assert credentials_for_image("r.io/red/a", [secret("r.io"), near, secret("r.io")]) == (Credential("near", "x"), HIM)


def test_credential_repr_hides_the_password() -> None:
    assert "his" not in repr(HIM)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("busybox", ("docker.io", "library/busybox")),
        ("red/web", ("docker.io", "red/web")),
        ("localhost/web", ("localhost", "web")),
        ("LOCALHOST/web", ("LOCALHOST", "web")),
    ],
)
def test_image_name_is_split_into_registry_and_path(image: str, expected: tuple[str, str]) -> None:
    assert split_registry(image) == expected
