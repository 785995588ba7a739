"""Image pulls from a registry with a password: sources, waiting and reports."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import docker
import pytest

from lab import images
from tests.testbed.docker.registry import PASSWORD, USER, running_registry
from tests.testbed.node.pods import NodePods, main, pod

# Docker's library leaves a socket open whose connection failed.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket.socket.*family=1,:ResourceWarning")


def carry_away(alone: NodePods, name: str) -> None:
    """Move an image to the registry, so that only the registry has it."""
    client = docker.APIClient(base_url=f"unix://{alone.node.root}/docker/docker.sock", version="1.41")
    repository, _, tag = name.rpartition(":")
    client.tag(images.TOOLBOX, repository, tag)
    right = {"username": USER, "password": PASSWORD}
    output = list(client.push(repository, tag, stream=True, decode=True, auth_config=right))
    assert not [line for line in output if "error" in line]
    client.remove_image(name)
    client.close()


def secret(address: str) -> str:
    """Return the registry's password in the form that kubectl writes."""
    auth = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    content = base64.b64encode(json.dumps({"auths": {address: {"auth": auth}}}).encode()).decode()
    return f"""\
---
apiVersion: v1
kind: Secret
metadata: {{name: registry, namespace: default}}
type: kubernetes.io/dockerconfigjson
data: {{.dockerconfigjson: {content}}}
"""


def using(name: str, image: str, policy: str, spec: str = "") -> str:
    container = main().replace("podlane/toolbox", image).replace("imagePullPolicy: Never", f"imagePullPolicy: {policy}")
    return pod(name, container, spec)


def test_image_pull_reports_its_source_or_its_failure(alone: NodePods, tmp_path: Path) -> None:
    with running_registry(tmp_path) as address:
        private = f"{address}/team/toolbox:1"
        carry_away(alone, private)
        alone.apply(
            secret(address),
            using("private", private, "Always", "imagePullSecrets: [{name: registry}]"),
            using("stranger", f"{address}/team/toolbox:2", "IfNotPresent", "imagePullSecrets: [{name: missing}]"),
            using("never", "nobody/nothing:1", "Never"),
            using("local", "localhost:9/team/toolbox:1", "Always"),
            using("nonsense", "Bad/Name:1", "IfNotPresent"),
        )
        alone.until_ready("private")
        assert re.fullmatch(
            f"docker-pullable://{address}/team/toolbox@sha256:[0-9a-f]{{64}}", alone.first_status("private")["imageID"]
        )
        reported = [(kind, reason, words) for kind, reason, words, _ in alone.events("private")]
        assert ("Normal", "Pulling", f'Pulling image "{private}"') in reported
        pulled = (
            rf'Successfully pulled image "{private}" in \d\S*s \(\d\S*s including waiting\)\. Image size: \d+ bytes\.'
        )
        assert [kind for kind, reason, words in reported if reason == "Pulled" and re.fullmatch(pulled, words)] == [
            "Normal"
        ]

        waits = alone.waits("stranger", "ImagePullBackOff")
        absent = f'Back-off pulling image "{address}/team/toolbox:2"'
        assert waits.startswith(f"{absent}: ErrImagePull: Docker: ")
        lacking = "Unable to retrieve some image pull secrets (missing); attempting to pull the image may not succeed."
        alone.until_events(
            "stranger",
            ("Warning", "FailedToRetrieveImagePullSecret", lacking),
            ("Warning", "Failed", f'Failed to pull image "{address}/team/toolbox:2": Docker: '),
            ("Warning", "Failed", "Error: ErrImagePull"),
            ("Normal", "BackOff", absent),
            ("Warning", "Failed", "Error: ImagePullBackOff"),
        )
    words = 'Container image "nobody/nothing:1" is not present with pull policy of Never'
    assert alone.waits("never", "ErrImageNeverPull") == words
    alone.until_events("never", ("Warning", "ErrImageNeverPull", words))
    assert alone.waits("nonsense", "InvalidImageName")
    alone.until_events("nonsense", ("Warning", "InspectFailed", 'Failed to inspect image "Bad/Name:1": '))
    refused = 'Failed to pull image "localhost:9/team/toolbox:1": registry localhost:9 is at '
    alone.until_events("local", ("Warning", "Failed", refused))
    alone.node.kubectl("delete", "secret", "registry")


def test_image_pull_policy_defaults_from_the_tag(alone: NodePods) -> None:
    texts = {
        "latest": "podlane/toolbox:latest",
        "none": "podlane/toolbox",
        "tagged": "podlane/toolbox:1",
    }
    alone.apply(*(using(name, image, "X").replace("    imagePullPolicy: X\n", "") for name, image in texts.items()))
    paths = (
        "get",
        "pods",
        "-o",
        "jsonpath={range .items[*]}{.metadata.name}={.spec.containers[0].imagePullPolicy} {end}",
    )
    assert sorted(alone.node.kubectl(*paths).split()) == ["latest=Always", "none=Always", "tagged=IfNotPresent"]
    alone.until_ready("latest", "none")
    stands_in = "already present on machine, and no registry answers"
    alone.until_events("none", ("Normal", "Pulled", f'Container image "podlane/toolbox" {stands_in}'))
