"""The life of a custom kind, by the oldest and the newest kubectl, against a real master."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testbed.kubectl import OLDEST_AND_NEWEST, RunKubectl

pytestmark = pytest.mark.parametrize("kubectl", OLDEST_AND_NEWEST, indirect=True, ids=lambda path: Path(path).name)

DEFINITION = """\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: lamps.GROUP}
spec:
  group: GROUP
  scope: Namespaced
  names: {plural: lamps, singular: lamp, kind: Lamp, shortNames: [lp], categories: [lights]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    additionalPrinterColumns:
    - {name: Color, type: string, jsonPath: .spec.color}
    - {name: Watts, type: integer, jsonPath: .spec.watts, priority: 1}
    schema:
      openAPIV3Schema:
        type: object
        description: Lamp is a source of light.
        properties:
          spec:
            type: object
            required: [color]
            properties:
              color: {type: string, description: Color of the light.}
              watts: {type: integer, default: 40}
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
"""

LAMP = """\
apiVersion: GROUP/v1
kind: Lamp
metadata: {name: desk}
spec: {color: COLOR}
"""


def test_the_life_of_a_custom_kind(kubectl: RunKubectl, project: str) -> None:
    group = f"{project}.example.com"
    kubectl("create", "namespace", project)
    on = ("-n", project)
    assert "created" in kubectl("apply", "-f", "-", text=DEFINITION.replace("GROUP", group)).stdout
    kubectl("wait", "--for", "condition=established", "--timeout=20s", f"crd/lamps.{group}")
    lamp = LAMP.replace("GROUP", group)
    assert "created" in kubectl(*on, "apply", "-f", "-", text=lamp.replace("COLOR", "red")).stdout
    assert "configured" in kubectl(*on, "apply", "-f", "-", text=lamp.replace("COLOR", "blue")).stdout
    assert "unchanged" in kubectl(*on, "apply", "-f", "-", text=lamp.replace("COLOR", "blue")).stdout
    assert [line.split() for line in kubectl(*on, "get", f"lamps.{group}").stdout.splitlines()] == [
        ["NAME", "COLOR"], ["desk", "blue"],
    ]  # fmt: skip
    assert kubectl(*on, "get", "lights", "-o", "wide", "--no-headers").stdout.split() == ["desk", "blue", "40"]
    explained = kubectl("explain", f"lamps.{group}.spec.color").stdout
    assert "Color of the light." in explained
    assert 'field "hue" does not exist' in kubectl("explain", f"lamps.{group}.spec.hue", code=1).stderr
    refused = kubectl(*on, "apply", "-f", "-", text=lamp.replace("color: COLOR", "color: red, hue: 3"), code=1)
    assert 'unknown field "spec.hue"' in refused.stderr
    wrong = kubectl(*on, "patch", f"lamps.{group}", "desk", "--type=merge", "-p", '{"spec":{"color":7}}', code=1)
    assert 'The Lamp "desk" is invalid' in wrong.stderr
    applied = kubectl(
        *on, "apply", "--server-side", "-f", "-", text=lamp.replace("COLOR", "green").replace("desk", "new")
    )
    assert "serverside-applied" in applied.stdout
    kubectl(*on, "label", f"lamps.{group}", "desk", "room=office")
    assert kubectl(*on, "get", f"lamps.{group}", "-l", "room=office", "-o", "name").stdout == f"lamp.{group}/desk\n"
    kubectl("delete", "crd", f"lamps.{group}", "--timeout=20s")
    assert "doesn't have a resource type" in kubectl(*on, "get", f"lamps.{group}", code=1).stderr
