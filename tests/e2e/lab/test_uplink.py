"""A lab that reaches what its machine reaches: names, registries and pages; and images that are brought by hand."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from lab import uplink
from lab.relay import REFUSAL
from lab.topology import REGISTRY, Lab, Site
from tests.testbed.lab.cluster import OCTET, SITE, Cluster
from tests.testbed.lab.machine import INTERNET, REGISTRY_NAME, REGISTRY_PORT, Machine, machine
from tests.testbed.wait import wait_until

UPLINK_SITE = Site(f"podu{OCTET}", IPv4Network("10.247.2.0/24"))
PULLED = f"{REGISTRY_NAME}:{REGISTRY_PORT}/team/tool:1"
SITE_TEXT = """
import sys
from ipaddress import IPv4Network
from pathlib import Path
from lab.topology import Site
site = Site(sys.argv[1], IPv4Network(sys.argv[2]))
"""
UP = f"""{SITE_TEXT}
from lab.up import Options, lab_up
sys.exit(lab_up(Path(sys.argv[3]), Options(size=1, registry=True), site))
"""
DOWN = f"""{SITE_TEXT}
from lab.down import bring_down
bring_down(Path(sys.argv[3]), site)
"""


class OpenLab:
    """A lab of one node on a machine with an Internet."""

    def __init__(self, here: Machine, lab: Lab) -> None:
        self.here = here
        self.lab = lab

    def docker(self, *words: str) -> str:
        """Run docker with the node's dockerd."""
        return self.here.run("docker", f"--host=unix://{self.lab.nodes[0].docker_socket}", *words).stdout

    def kubectl(self, *words: str) -> str:
        """Run kubectl as the administrator."""
        return self.here.run("kubectl", f"--kubeconfig={self.lab.kubeconfig}", *words).stdout

    def podlane(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command of the lab, which has another place than the user's."""
        program = (
            f"{SITE_TEXT}\nfrom lab.load import build, load\nfrom lab.process import LabError, Progress\n"
            "from lab.state import read_lab\n"
            "try:\n"
            "    if sys.argv[3] == 'load': load(read_lab(site), sys.argv[4:], Progress())\n"
            "    else: build(read_lab(site), Path(sys.argv[4]), sys.argv[5], Progress())\n"
            "except LabError as error: sys.exit(str(error))\n"
        )
        site = (self.lab.site.prefix, str(self.lab.site.underlay))
        return self.here.run(sys.executable, "-c", program, *site, *words, check=check)

    def run_pod(self, name: str, image: str, policy: str) -> str:
        """Run a pod of the project red, and return its address."""
        sleep = ("--restart=Never", f"--image-pull-policy={policy}", "--", "sleep", "1000")
        self.kubectl("-n", "red", "run", name, f"--image={image}", *sleep)
        self.kubectl("-n", "red", "wait", "--for=condition=Ready", f"pod/{name}", "--timeout=60s")
        return self.kubectl("-n", "red", "get", "pod", name, "-o", "jsonpath={.status.podIP}")


@pytest.fixture(scope="module")
def open_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenLab]:
    root = tmp_path_factory.mktemp("machine")
    state = Path(f"/tmp/{UPLINK_SITE.prefix}")
    arguments = (UPLINK_SITE.prefix, str(UPLINK_SITE.underlay), str(state))
    with machine(root) as here:
        # As Docker leaves it on a machine where it runs.
        drop = "chain FORWARD { type filter hook forward priority filter; policy drop\n }"
        here.run("nft", f"table ip filter {{\n {drop}\n }}")
        here.python(DOWN, *arguments)  # left by a killed run
        try:
            here.python(UP, *arguments)
            lab = Lab(UPLINK_SITE, state, Path(sys.executable).parent, 1, "ovs-multitenant", registry=True)
            yield OpenLab(here, lab)
        finally:
            here.python(DOWN, *arguments)
        assert here.run("sysctl", "-n", "net.ipv4.ip_forward").stdout.strip() == "0"
        assert uplink_table(here).returncode
        assert UPLINK_SITE.prefix not in here.run("nft", "list", "ruleset").stdout


def uplink_table(here: Machine) -> subprocess.CompletedProcess[str]:
    """List the table of the lab's uplink."""
    return here.run("nft", "list", "table", "ip", f"{UPLINK_SITE.prefix}-lab", check=False)


def test_pods_run_images_of_registries_that_the_machine_reaches_by_its_own_resolver(open_lab: OpenLab) -> None:
    open_lab.docker("tag", "podlane/toolbox", PULLED)
    open_lab.docker("push", PULLED)
    open_lab.docker("rmi", PULLED)
    open_lab.run_pod("pulled", PULLED, "Always")


def test_pods_reach_the_networks_of_the_machine_with_its_address(open_lab: OpenLab) -> None:
    open_lab.run_pod("caller", "podlane/toolbox", "Never")
    page = f"http://{REGISTRY_NAME}:{REGISTRY_PORT}/v2/"
    assert open_lab.kubectl("-n", "red", "exec", "caller", "--", "curl", "-fsS", page) == "{}"
    assert open_lab.kubectl("-n", "red", "exec", "caller", "--", "curl", "-fsS", page.replace(REGISTRY_NAME, INTERNET))


def test_load_balancer_address_answers_on_the_machine(open_lab: OpenLab) -> None:
    ports = ("--port=80", "--target-port=8080", "--type=LoadBalancer")
    open_lab.kubectl("-n", "red", "expose", "pod", "red-1", "--name=page", *ports)
    address = open_lab.kubectl("-n", "red", "get", "svc", "page", "-o", "jsonpath={.status.loadBalancer.ingress[0].ip}")
    port = open_lab.kubectl("-n", "red", "get", "svc", "page", "-o", "jsonpath={.spec.ports[0].nodePort}")
    for url in (f"http://{address}/", f"http://{open_lab.lab.nodes[0].address}:{port}/"):
        wait_until(lambda url=url: open_lab.here.run("curl", "-fsS", url, check=False).stdout == "red-1\n", url)  # type: ignore[misc]


def test_registry_of_the_lab_serves_the_machine_and_the_nodes_by_one_name(open_lab: OpenLab) -> None:
    image = f"{REGISTRY}/mine/tool:1"
    assert open_lab.here.run("curl", "-fsS", f"http://{REGISTRY}/v2/").stdout == "{}"
    open_lab.docker("tag", "podlane/toolbox", image)
    open_lab.docker("push", image)
    open_lab.docker("rmi", image)
    open_lab.run_pod("mine", image, "Always")
    open_lab.run_pod("by-name", image.replace("127.0.0.1", "localhost"), "Always")


def test_build_and_load_put_images_onto_the_nodes(open_lab: OpenLab, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM podlane/toolbox\nRUN echo built > /tmp/name\n")
    assert "node-1 has local/built:1" in open_lab.podlane("build", str(tmp_path), "local/built:1").stdout
    assert open_lab.docker("run", "--rm", "--network=none", "local/built:1", "cat", "/tmp/name") == "built\n"
    archive = tmp_path / "built.tar"
    open_lab.docker("save", f"--output={archive}", "local/built:1")
    open_lab.docker("rmi", "local/built:1")
    assert "node-1 has" in open_lab.podlane("load", str(archive)).stdout
    open_lab.run_pod("built", "local/built:1", "IfNotPresent")


def test_missing_image_or_dockerfile_is_named(open_lab: OpenLab, tmp_path: Path) -> None:
    refused = open_lab.podlane("load", "nobody/nothing:1", check=False)
    assert refused.returncode
    assert "nobody/nothing:1" in refused.stderr
    assert "docker save" in refused.stderr
    refused = open_lab.podlane("build", str(tmp_path), "x:1", check=False)
    assert refused.returncode
    assert f"{tmp_path} has no file Dockerfile" in refused.stderr


def test_internal_lab_has_no_way_out(cluster: Cluster) -> None:
    assert not uplink.is_connected(SITE)
    assert cluster.execute("red", "red-1", "ping", "-c1", "-W1", INTERNET).returncode
    socket = cluster.nodes["node-1"].docker_socket
    pull = ("docker", f"--host=unix://{socket}", "pull", "registry.test/team/tool:1")
    refused = subprocess.run(pull, capture_output=True, text=True, check=False)
    assert refused.returncode
    assert REFUSAL in refused.stderr
    process = Path("/proc", cluster.nodes["node-1"].root.joinpath("dockerd.pid").read_text().strip(), "environ")
    assert b"HTTPS_PROXY=http://127.0.0.1:9" in process.read_bytes()


TWO_LABS = """
import sys
from ipaddress import IPv4Network
from pathlib import Path
from lab import uplink
from lab.relay import REFUSAL
from lab.topology import Lab, Site
sites = [Site(prefix, IPv4Network("10.248.2.0/24")) for prefix in sys.argv[1:]]
labs = [Lab(site, Path(), Path(), 1, "ovs-multitenant") for site in sites]
for lab in labs:
    lab.root.mkdir()
try:
    for lab in labs:
        uplink.connect(lab)
    for lab in labs:
        uplink.disconnect(lab.site)
        print(uplink.FORWARDING.read_text().strip())
finally:
    for lab in labs:
        lab.site.forwarding_mark.unlink(missing_ok=True)
        lab.root.rmdir()
"""


LAB_WITHOUT_STATE = """
import sys
from ipaddress import IPv4Network
from pathlib import Path
from lab import uplink
from lab.down import bring_down, has_traces
from lab.topology import Lab, Site
state, site = Path(sys.argv[2]), Site(sys.argv[1], IPv4Network("10.248.2.0/24"))
state.mkdir()
site.run_dir.symlink_to(state)
uplink.connect(Lab(site, state, Path(), 1, "ovs-multitenant"))
print(uplink.FORWARDING.read_text().strip())
state.rmdir()
bring_down(state, site)
print(uplink.FORWARDING.read_text().strip(), has_traces(state, site))
"""


def test_forwarding_ends_with_a_lab_whose_state_was_deleted(tmp_path: Path) -> None:
    with machine(tmp_path) as here:
        assert here.python(LAB_WITHOUT_STATE, f"podv{OCTET}", str(tmp_path / "state")).split() == ["1", "0", "False"]


def test_forwarding_ends_with_the_last_lab(tmp_path: Path) -> None:
    with machine(tmp_path) as here:
        for order in ((f"podv{OCTET}", f"podw{OCTET}"), (f"podw{OCTET}", f"podv{OCTET}")):
            assert here.python(TWO_LABS, *order).split() == ["1", "0"]
