"""What a machine reads of cluster-info before it knows who has written it."""

from __future__ import annotations

import base64

import pytest

from api.client.authorities import authorities_of
from api.core.config import ConfigMap

CA = base64.b64encode(b"certificates").decode()
KUBECONFIG = f"clusters:\n- {{name: '', cluster: {{server: 'https://a', certificate-authority-data: {CA}}}}}\n"
HOSTILE = {
    "merges that double": "a0: &a0 {x: 1}\n"
    + "\n".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}" for i in range(1, 28)),
    "many merges": f"a: &a {{{','.join(f'k{i}: 1' for i in range(2000))}}}\n" + "b: {<<: *a}\n" * 8000,
    "aliases": "a: &a [1, 1]\n"
    + "\n".join(f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}]" for i in range(24)),
    "depth": "[" * 100_000,
    "no cluster": "clusters: []",
    "a number": "1",
    "no base64": KUBECONFIG.replace(CA, "'%'"),
    "nothing": "",
}


def info(text: str) -> ConfigMap:
    return ConfigMap(data={"kubeconfig": text})


def test_certificates_are_read() -> None:
    assert authorities_of(info(KUBECONFIG)) == b"certificates"


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_refused(name: str) -> None:
    """The first takes gigabytes, and minutes, in a parser without bounds."""
    with pytest.raises(ValueError, match="no certificate-authority-data"):
        authorities_of(info(HOSTILE[name]))
