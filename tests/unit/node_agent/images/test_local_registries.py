"""Registries that Docker is asked for images, and those that mean the node itself."""

from __future__ import annotations

import pytest

from node_agent.images.local_registries import local_registry_problem, registry_host

OWN = frozenset(("127.0.0.1", "198.51.100.7", "2001:db8::7", "fe80::7%eth0"))
"""Addresses of a node, as the system writes them."""


@pytest.mark.parametrize(
    ("registry", "host"),
    [("quay.io", "quay.io"), ("quay.io:443", "quay.io"), ("[::1]:5000", "::1"), ("[::1]", "::1")],
)
def test_host_of_a_registry_has_no_port(registry: str, host: str) -> None:
    assert registry_host(registry) == host


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::", "169.254.169.254", "fe80::1%eth0"]
)
def test_registry_with_an_address_of_the_node_is_refused(address: str) -> None:
    problem = local_registry_problem("r.example:5000", ["192.0.2.1", address], (), ())
    assert problem.startswith(f"registry r.example:5000 is at {address}, ")


@pytest.mark.parametrize("address", ["192.0.2.1", "10.0.0.1", "2001:db8::1"])
def test_registry_with_other_addresses_is_asked(address: str) -> None:
    assert local_registry_problem("r.example", [address], (), OWN) == ""
    assert local_registry_problem("r.example", [], (), OWN) == "", "Docker reports that the name does not resolve"


@pytest.mark.parametrize("accepted", ["127.0.0.1", "127.0.0.1:5000"])
def test_registry_of_the_operator_is_asked(accepted: str) -> None:
    assert local_registry_problem("127.0.0.1:5000", ["127.0.0.1"], (accepted,), ()) == ""
    assert local_registry_problem("127.0.0.2:5000", ["127.0.0.2"], (accepted,), ()) != ""


@pytest.mark.parametrize("address", ["198.51.100.7", "::ffff:198.51.100.7", "2001:db8:0::7", "2001:DB8::7"])
def test_registry_at_another_address_of_the_node_is_refused_unless_the_operator_accepts_it(address: str) -> None:
    assert f" is at {address}, an address of the node" in local_registry_problem("r:5000", [address], (), OWN)
    assert local_registry_problem("r:5000", [address], (), OWN - {"198.51.100.7", "2001:db8::7"}) == ""
    assert local_registry_problem("r:5000", [address], ("r:5000",), OWN) == ""
