"""A project with a web server of several pods behind services, and clients that may reach it or may not."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

from lab.process import run, succeeds
from lab.topology import EXTERNAL_IP_NETWORK
from tests.testbed.lab import http_caller
from tests.testbed.lab.cluster import Cluster
from tests.testbed.wait import DEADLINE_SECONDS, wait_until

SHOP, RIVAL = "shop", "rival"
REPLICAS = 4
EXTERNAL_IP = IPv4Network(EXTERNAL_IP_NETWORK).network_address + 7
PORT = 80

SERVING = "mkdir /tmp/www; hostname > /tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www"

OBJECTS = f"""\
---
apiVersion: v1
kind: ReplicationController
metadata: {{name: web, namespace: {SHOP}}}
spec:
  replicas: {REPLICAS}
  selector: {{app: web}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      terminationGracePeriodSeconds: 4
      containers:
      - name: web
        image: podlane/toolbox
        imagePullPolicy: Never
        command: [sh, -c, "{SERVING}"]
        lifecycle: {{preStop: {{exec: {{command: [sleep, "2"]}}}}}}
        readinessProbe:
          exec: {{command: [test, -e, /tmp/www/index.html]}}
          periodSeconds: 1
          failureThreshold: 1
          timeoutSeconds: 30
---
apiVersion: v1
kind: Service
metadata: {{name: web, namespace: {SHOP}}}
spec:
  type: LoadBalancer
  selector: {{app: web}}
  externalIPs: ["{EXTERNAL_IP}"]
  ports: [{{name: http, port: {PORT}, targetPort: 8080}}]
---
apiVersion: v1
kind: Service
metadata: {{name: sticky, namespace: {SHOP}}}
spec:
  selector: {{app: web}}
  sessionAffinity: ClientIP
  ports: [{{port: {PORT}, targetPort: 8080}}]
---
apiVersion: v1
kind: Service
metadata: {{name: local, namespace: {SHOP}}}
spec:
  type: LoadBalancer
  externalTrafficPolicy: Local
  selector: {{only: "yes"}}
  ports: [{{port: {PORT}, targetPort: 8080}}]
---
apiVersion: v1
kind: Service
metadata: {{name: nobody, namespace: {SHOP}}}
spec: {{selector: {{app: nobody}}, ports: [{{port: {PORT}}}]}}
"""


def client_pod(project: str, node: str) -> str:
    """Return the manifest of a client pod."""
    return f"""\
---
apiVersion: v1
kind: Pod
metadata: {{name: {node}, namespace: {project}}}
spec:
  nodeName: {node}
  terminationGracePeriodSeconds: 0
  containers:
  - {{name: main, image: podlane/toolbox, imagePullPolicy: Never, command: [tail, -f, /dev/null]}}
"""


@dataclass(frozen=True, slots=True)
class CallCounts:
    """The outcomes of calls."""

    answers: Counter[str]
    failures: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> CallCounts:
        """Return the outcomes that http_caller.py prints."""
        output = json.loads(text)
        return cls(Counter(output["answers"]), tuple(output["failures"]))


@dataclass(frozen=True, slots=True)
class Caller:
    """A client in a network namespace, which is given by its path."""

    name: str
    netns: str

    def calls(self, address: object, port: int = PORT, times: int = 1) -> CallCounts:
        """So often; all that became of it."""
        return CallCounts.of(run(*self._command(address, port, str(times)), seconds=DEADLINE_SECONDS))

    def is_answered(self, address: object, port: int = PORT) -> bool:
        """Return whether one call succeeds."""
        return not self.calls(address, port).failures

    @contextlib.contextmanager
    def calling(self, address: object, each_second: int, port: int = PORT) -> Iterator[list[CallCounts]]:
        """Make calls during the block. The yielded list has the outcomes after the block."""
        came: list[CallCounts] = []
        command = self._command(address, port, "each-second", str(each_second))
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
            try:
                yield came
            finally:
                came.append(CallCounts.of(program.communicate()[0]))

    def _command(self, address: object, port: int, *how: str) -> tuple[str, ...]:
        program = (sys.executable, str(Path(http_caller.__file__)), str(address), str(port))
        return ("nsenter", f"--net={self.netns}", *program, *how)


class WebService:
    """Needs a cluster; everything is there and ready after `open`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._outside = f"{cluster.lab.site.prefix}-outside"

    def open(self) -> None:
        """Projects, pods and services."""
        for project in (SHOP, RIVAL):
            self.cluster.kubectl("create", "namespace", project)
        self.cluster.apply(OBJECTS)
        self.cluster.apply("".join(client_pod(project, node) for project in (SHOP, RIVAL) for node in self.nodes))
        self.cluster.apply(client_pod("default", "node-1").replace("name: node-1,", "name: global,"))
        for project in (SHOP, RIVAL):
            self.cluster.wait_running(project, *self.nodes)
        self.cluster.wait_running("default", "global")
        wait_until(lambda: len(self.endpoints("web")) == REPLICAS, "every replica is an endpoint")
        self._plug_outside()

    def close(self) -> None:
        """Delete the projects and pods of the web service, and the external host."""
        self._unplug_outside()
        self.cluster.kubectl("delete", "namespace", SHOP, RIVAL, "--ignore-not-found", "--timeout=60s")
        self.cluster.kubectl("delete", "pod", "global", "--ignore-not-found", "--timeout=60s")

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(self.cluster.nodes)

    def service(self, name: str = "web") -> dict[str, Any]:
        """Return the Service."""
        actual: dict[str, Any] = json.loads(self.cluster.kubectl("-n", SHOP, "get", "svc", name, "-o", "json").stdout)
        return actual

    def cluster_ip(self, name: str = "web") -> str:
        return str(self.service(name)["spec"]["clusterIP"])

    @property
    def ingress_ip(self) -> str:
        return str(self.service()["status"]["loadBalancer"]["ingress"][0]["ip"])

    @property
    def node_port(self) -> int:
        return int(self.service()["spec"]["ports"][0]["nodePort"])

    def node_address(self, node: str) -> IPv4Address:
        return self.cluster.nodes[node].address

    def endpoints(self, name: str) -> dict[str, str]:
        """Return the addresses of the ready endpoints by the pod's name."""
        words = ("-n", SHOP, "get", "endpointslices", "-l", f"kubernetes.io/service-name={name}", "-o", "json")
        slices = json.loads(self.cluster.kubectl(*words).stdout)["items"]
        rows = [
            endpoint
            for endpoint_slice in slices
            for endpoint in endpoint_slice["endpoints"] or ()
            if endpoint["conditions"]["ready"]
        ]
        return {endpoint["targetRef"]["name"]: endpoint["addresses"][0] for endpoint in rows}

    def pods(self) -> set[str]:
        """Return the names of the web server's pods."""
        words = ("-n", SHOP, "get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].metadata.name}")
        return set(self.cluster.kubectl(*words).stdout.split())

    def pod(self, project: str, name: str) -> Caller:
        """Return a client in a pod."""
        return Caller(f"{project}/{name}", f"/proc/{self.cluster.pid(project, name)}/ns/net")

    def node(self, name: str) -> Caller:
        """Return a client on a node."""
        return Caller(name, f"/run/netns/{self.cluster.nodes[name].namespace}")

    @property
    def outside(self) -> Caller:
        """A client on a host outside the cluster, with routes to external and ingress addresses."""
        return Caller("outside", f"/run/netns/{self._outside}")

    def _plug_outside(self) -> None:
        site, cable = self.cluster.lab.site, f"{self.cluster.lab.site.prefix}-o"
        self._unplug_outside()
        run("ip", "netns", "add", self._outside)
        inside = ("ip", "-n", self._outside)
        run(*inside, "link", "add", "eth0", "type", "veth", "peer", "name", cable, "netns", str(os.getpid()))
        run("ip", "link", "set", cable, "master", site.bridge, "up")
        run("ip", "netns", "exec", self._outside, "ethtool", "-K", "eth0", "tx", "off")
        run(*inside, "addr", "add", f"{site.underlay.network_address + 200}/{site.underlay.prefixlen}", "dev", "eth0")
        run(*inside, "link", "set", "eth0", "up")
        run(*inside, "route", "add", EXTERNAL_IP_NETWORK, "via", str(self.node_address("node-2")))
        run(*inside, "route", "add", self.ingress_ip, "via", str(self.node_address("node-1")))

    def _unplug_outside(self) -> None:
        """Delete the external host. The kernel removes the cable some time after its namespace, so the cable is deleted
        first.
        """
        succeeds("ip", "link", "del", f"{self.cluster.lab.site.prefix}-o")
        succeeds("ip", "netns", "del", self._outside)
