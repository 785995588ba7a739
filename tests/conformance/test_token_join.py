"""A machine with a bootstrap token becomes a node of a Kubernetes and renews certificates that last a minute."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from api.core.certificates import KUBELET_CLIENT_SIGNER, KUBELET_SERVING_SIGNER
from tests.conformance.build import CONTROL_PLANE, missing
from tests.conformance.token_join import JoiningNode, over
from tests.testbed.node.single_node import NODE
from tests.testbed.wait import wait_until

LACKING = missing(CONTROL_PLANE)
pytestmark = pytest.mark.skipif(bool(LACKING), reason=f"not built ({', '.join(LACKING)}); `make conformance` builds it")

SUBJECT = f"system:node:{NODE}"
LONG = 150.0


@pytest.fixture(scope="module")
def node() -> Iterator[JoiningNode]:
    with JoiningNode() as joining_node:
        joining_node.hand_out()
        joining_node.agent()
        yield joining_node


def test_machine_joins_by_bootstrap_token_and_registers(node: JoiningNode) -> None:
    (first, *_) = node.requests(KUBELET_CLIENT_SIGNER)
    assert first[1] == ["Approved"]
    certificate = node.certificate()
    assert certificate is not None
    assert (certificate.subject.user, certificate.subject.groups) == (SUBJECT, ("system:nodes",))
    assert (node.root / "node").stat().st_mode & 0o777 == 0o600


def test_serving_certificate_is_used_after_manual_approval(node: JoiningNode) -> None:
    wait_until(lambda: bool(node.requests(KUBELET_SERVING_SIGNER)), "it asks for a serving certificate")
    (name, decided), *_ = node.requests(KUBELET_SERVING_SIGNER)
    assert decided == []
    assert node.served().subject.user.startswith(f"{NODE}@")
    assert name in node.agent_log()
    node.kubectl("certificate", "approve", name)
    wait_until(lambda: node.served().subject.user == SUBJECT, "it serves with it", LONG)
    assert node.served().subject.dns_names == (NODE,)
    proxied = ("get", "--raw", f"/api/v1/nodes/{NODE}/proxy/healthz")
    wait_until(lambda: node.kubectl(*proxied) == "ok", "the API server, which verifies it, gets through")


def test_node_renews_its_certificates_before_they_expire(node: JoiningNode) -> None:
    first = node.certificate()
    assert first is not None
    wait_until(lambda: over(first), "the first certificate is over", LONG)
    second = node.certificate()
    assert second is not None
    assert second.fingerprint != first.fingerprint
    path = "jsonpath={.spec.renewTime}"
    lease = ("-n", "kube-node-lease", "get", "lease", NODE, "-o", path)
    before = node.kubectl(*lease)
    wait_until(lambda: node.kubectl(*lease) > before, "it renews its lease")
    assert node.node_condition("Ready") == "True"
    node.kubectl("create", "configmap", "after")


def test_agent_with_an_expired_certificate_joins_again(node: JoiningNode) -> None:
    with node.without_agent():
        last = node.certificate()
        assert last is not None
        wait_until(lambda: over(last), "its certificate is over", LONG)
    again = node.certificate()
    assert again is not None
    assert again.fingerprint != last.fingerprint
