"""An operator on kopf, as people write them: `kopf run` loads this file.

Its kind is the Lamp. It makes its definitions and its webhook configurations itself, has a ConfigMap for each lamp,
counts in the status while the lamp is lit, and keeps the ConfigMap `switched-off` of the lamps that it has let go.
It configures itself from the environment: HOOK_HOST, HOOK_PORT and HOOK_CERTIFICATE (certificate and key) of its
webhook server, HOOK_CA, and OPERATOR, the name that it writes into the status.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import kopf
import kubernetes
import yaml

GROUP = "lamps.example.org"
DEFINITIONS = """
- metadata: {name: lamps.lamps.example.org}
  spec:
    group: lamps.example.org
    scope: Namespaced
    names: {plural: lamps, singular: lamp, kind: Lamp, shortNames: [lp]}
    versions:
    - name: v1
      served: true
      storage: true
      subresources: {status: {}}
      additionalPrinterColumns:
      - {name: Color, type: string, jsonPath: .spec.color}
      - {name: Ready, type: string, jsonPath: '.status.conditions[?(@.type=="Ready")].status'}
      schema:
        openAPIV3Schema:
          type: object
          required: [spec]
          properties:
            spec:
              type: object
              required: [color]
              x-kubernetes-validations:
              - {rule: "self.watts <= 100", message: "a lamp has at most 100 watts"}
              properties:
                color: {type: string, maxLength: 20}
                watts: {type: integer, default: 40}
                socket: {type: string}
            status: {type: object, x-kubernetes-preserve-unknown-fields: true}
- metadata: {name: clusterkopfpeerings.kopf.dev}
  spec:
    group: kopf.dev
    scope: Cluster
    names: {plural: clusterkopfpeerings, singular: clusterkopfpeering, kind: ClusterKopfPeering}
    versions:
    - name: v1
      served: true
      storage: true
      schema:
        openAPIV3Schema:
          type: object
          properties:
            status: {type: object, x-kubernetes-preserve-unknown-fields: true}
"""
PEERING = {"apiVersion": "kopf.dev/v1", "kind": "ClusterKopfPeering", "metadata": {"name": "lamps"}}


def _ignoring_conflict(create: Any, *arguments: Any, **more: Any) -> None:
    try:
        create(*arguments, **more)
    except kubernetes.client.ApiException as error:
        if error.status != 409:
            raise


def _install() -> None:
    kubernetes.config.load_kube_config()
    definitions = kubernetes.client.ApiextensionsV1Api()
    for definition in yaml.safe_load(DEFINITIONS):
        _ignoring_conflict(definitions.create_custom_resource_definition, definition)
        kubernetes_watch = kubernetes.watch.Watch()
        name = f"metadata.name={definition['metadata']['name']}"
        for event in kubernetes_watch.stream(definitions.list_custom_resource_definition, field_selector=name):
            conditions = (event["object"].status and event["object"].status.conditions) or ()
            if any((each.type, each.status) == ("Established", "True") for each in conditions):
                kubernetes_watch.stop()
    # The kind is there as soon as its condition says so.
    objects = kubernetes.client.CustomObjectsApi()
    _ignoring_conflict(objects.create_cluster_custom_object, "kopf.dev", "v1", "clusterkopfpeerings", PEERING)


@kopf.on.startup()
async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
    await asyncio.to_thread(_install)
    settings.admission.managed = GROUP
    settings.admission.server = kopf.WebhookServer(
        addr="0.0.0.0",
        host=os.environ["HOOK_HOST"],
        port=int(os.environ["HOOK_PORT"]),
        certfile=os.environ["HOOK_CERTIFICATE"],
        pkeyfile=os.environ["HOOK_CERTIFICATE"],
        cafile=os.environ["HOOK_CA"],
    )
    settings.peering.lifetime = 3
    settings.peering.mandatory = True
    settings.peering.clusterwide = True
    settings.persistence.finalizer = f"{GROUP}/off"


@kopf.on.mutate(GROUP, "v1", "lamps", operations=["CREATE", "UPDATE"])
def complete(spec: kopf.Spec, patch: kopf.Patch, **_: Any) -> None:
    if "socket" not in spec:
        patch.spec["socket"] = "E27"


@kopf.on.validate(GROUP, "v1", "lamps", operations=["CREATE", "UPDATE"])
def check(spec: kopf.Spec, warnings: list[str], **_: Any) -> None:
    if spec["color"] == "plaid":
        raise kopf.AdmissionError("plaid is no color", code=422)
    if spec["watts"] < 5:
        warnings.append("this lamp is dim")


def _ready(generation: int) -> list[dict[str, Any]]:
    return [{"type": "Ready", "status": "True", "reason": "Lit", "observedGeneration": generation}]


@kopf.on.create(GROUP, "v1", "lamps")
@kopf.on.resume(GROUP, "v1", "lamps")
@kopf.on.update(GROUP, "v1", "lamps")
def light(body: kopf.Body, spec: kopf.Spec, namespace: str | None, name: str, patch: kopf.Patch, **_: Any) -> None:
    config_map: dict[str, Any] = {"metadata": {"name": f"lamp-{name}"}, "data": {"color": spec["color"]}}
    kopf.adopt(config_map, owner=body)
    core = kubernetes.client.CoreV1Api()
    try:
        core.create_namespaced_config_map(namespace, config_map)
    except kubernetes.client.ApiException as error:
        if error.status != 409:
            raise
        core.patch_namespaced_config_map(config_map["metadata"]["name"], namespace, {"data": config_map["data"]})
    patch.status["conditions"] = _ready(body.metadata["generation"])
    patch.status["by"] = os.environ["OPERATOR"]
    kopf.info(body, reason="Lit", message=f"shines in {spec['color']}")


@kopf.timer(GROUP, "v1", "lamps", interval=0.2)
def count(status: kopf.Status, patch: kopf.Patch, **_: Any) -> None:
    patch.status["ticks"] = int(status.get("ticks", 0)) + 1


@kopf.daemon(GROUP, "v1", "lamps", cancellation_timeout=1)
async def glow(stopped: kopf.DaemonStopped, patch: kopf.Patch, namespace: str | None, name: str, **_: Any) -> None:
    core = kubernetes.client.CoreV1Api()
    while not stopped:
        change = {"metadata": {"annotations": {"glows": os.environ["OPERATOR"]}}}
        try:
            await asyncio.to_thread(core.patch_namespaced_config_map, f"lamp-{name}", namespace, change)
        except kubernetes.client.ApiException as error:
            if error.status != 404:
                raise
        await stopped.wait(0.2)


@kopf.on.delete(GROUP, "v1", "lamps")
def switch_off(namespace: str | None, name: str, **_: Any) -> None:
    core = kubernetes.client.CoreV1Api()
    document = {"metadata": {"name": "switched-off"}}
    _ignoring_conflict(core.create_namespaced_config_map, namespace, document)
    core.patch_namespaced_config_map("switched-off", namespace, {"data": {name: os.environ["OPERATOR"]}})
