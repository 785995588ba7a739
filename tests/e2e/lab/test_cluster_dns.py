"""DNS in the lab: for resolvers in containers, for other projects and for clients outside."""

from __future__ import annotations

import json
from collections.abc import Iterator
from ipaddress import IPv4Network

import dns.message
import dns.query
import dns.rcode
import pytest

from tests.testbed.lab.cluster import Cluster
from tests.testbed.wait import wait_until

PROJECTS = ("names", "others")
MANIFEST = """
apiVersion: v1
kind: Namespace
metadata: {name: names}
---
apiVersion: v1
kind: Namespace
metadata: {name: others}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: names}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080, name: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: set, namespace: names}
spec: {selector: {app: web}, clusterIP: None, ports: [{port: 8080, name: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: docs, namespace: names}
spec: {type: ExternalName, externalName: web.names.svc.cluster.local}
"""
POD = """
---
apiVersion: v1
kind: Pod
metadata: {name: NAME, namespace: NAMESPACE, labels: {app: LABEL}}
spec:
  terminationGracePeriodSeconds: 0
  hostname: NAME
  subdomain: set
  hostNetwork: HOST
  dnsPolicy: POLICY
  containers: [{name: main, image: podlane/toolbox, command: COMMAND, imagePullPolicy: Never}]
"""


def pod(namespace: str, name: str, label: str = "none", host: str = "false", policy: str = "ClusterFirst") -> str:
    words = {"NAMESPACE": namespace, "NAME": name, "LABEL": label, "HOST": host, "POLICY": policy}
    words["COMMAND"] = '[httpd, -f, -p, "8080"]' if host == "false" else "[tail, -f, /dev/null]"
    text = POD
    for word, value in words.items():
        text = text.replace(word, value)
    return text


@pytest.fixture(scope="module")
def named(cluster: Cluster) -> Iterator[Cluster]:
    cluster.apply(
        MANIFEST
        + pod("names", "one", "web")
        + pod("names", "two", "web")
        + pod("names", "asker")
        + pod("others", "stranger")
        + pod("names", "on-host", host="true", policy="ClusterFirstWithHostNet")
    )
    cluster.wait_running("names", "one", "two", "asker", "on-host")
    cluster.wait_running("others", "stranger")
    yield cluster
    cluster.kubectl("delete", "namespace", *PROJECTS, "--wait=false")


def resolved_addresses(cluster: Cluster, namespace: str, name: str, wanted: str) -> list[str]:
    """Return the sorted addresses that a resolver in a pod returns for a name; empty if there are none."""
    output = cluster.kubectl("-n", namespace, "exec", name, "--", "nslookup", wanted, check=False).stdout
    answer = output.partition("\n\n")[2]
    rows = [line.split(":", 1)[1].split() for line in answer.splitlines() if line.startswith("Address")]
    return sorted(fields[-1] for fields in rows)


def test_pod_uses_its_nodes_gateway_as_nameserver(named: Cluster) -> None:
    node = named.node_of("names", "asker")
    subnet = json.loads(named.kubectl("get", "hostsubnet", node, "-o", "json").stdout)["subnet"]
    lines = named.execute("names", "asker", "cat", "/etc/resolv.conf").stdout.splitlines()
    assert lines[0] == f"nameserver {IPv4Network(subnet).network_address + 1}"
    assert lines[1].startswith("search names.svc.cluster.local svc.cluster.local cluster.local")
    assert lines[2] == "options ndots:5"


@pytest.mark.parametrize(
    "name", ["web.names.svc.cluster.local", "web.names.cluster.local", "docs.names.svc.cluster.local"]
)
def test_service_name_resolves_only_in_its_own_project(named: Cluster, name: str) -> None:
    address = json.loads(named.kubectl("-n", "names", "get", "service", "web", "-o", "json").stdout)["spec"][
        "clusterIP"
    ]
    wait_until(lambda: resolved_addresses(named, "names", "asker", name) == [address], f"{name} is found")
    assert resolved_addresses(named, "names", "on-host", name) == [address]
    assert resolved_addresses(named, "others", "stranger", name) == []


def test_headless_service_resolves_to_its_pods(named: Cluster) -> None:
    pods = sorted(named.address("names", name) for name in ("one", "two"))
    wait_until(
        lambda: resolved_addresses(named, "names", "asker", "set.names.svc.cluster.local") == pods,
        "both pods are found",
    )
    assert resolved_addresses(named, "names", "asker", "one.set.names.svc.cluster.local") == [
        named.address("names", "one")
    ]
    assert resolved_addresses(named, "others", "stranger", "set.names.svc.cluster.local") == []


def test_short_service_name_resolves_by_the_search_list(named: Cluster) -> None:
    """Resolves the name by the resolver of the C library and its search list."""
    fetch = ("wget", "-q", "-O", "-", "http://one.set:8080/etc/resolv.conf")
    assert "nameserver" in named.execute("names", "asker", *fetch).stdout
    refused = named.kubectl("-n", "others", "exec", "stranger", "--", *fetch, check=False)
    assert "bad address" in refused.stderr


def test_external_name_fails_soon_when_no_upstream_server_is_reachable(named: Cluster) -> None:
    """A lab reaches no upstream server of the machine. The error arrives before a client would retry."""
    refused = named.kubectl("-n", "names", "exec", "asker", "--", "nslookup", "www.example.com", check=False)
    assert "SERVFAIL" in refused.stdout + refused.stderr


def test_master_answers_dns_queries_from_outside(named: Cluster) -> None:
    query = dns.message.make_query("set.names.svc.cluster.local", "A")
    answer = dns.query.udp(query, str(named.lab.site.master), 5)
    pods = sorted(named.address("names", name) for name in ("one", "two"))
    assert sorted(str(rdata) for rrset in answer.answer for rdata in rrset) == pods
