"""The whole life of an operator on kopf against a real master: it is killed in the middle, and another one takes over.

It runs with the rights that kopf's documentation asks for. Its program is tests/testbed/lamp_operator.py.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from tests.testbed import lamp_operator
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.ports import free_port
from tests.testbed.streaming.fake_kubelet import own_address
from tests.testbed.wait import wait_until
from tests.testbed.webhook_server import write_certificate

GROUP, NAMESPACE = lamp_operator.GROUP, "workshop"
RULES = [
    {"apiGroups": [GROUP], "resources": ["*"], "verbs": ["*"]},
    {"apiGroups": ["kopf.dev"], "resources": ["*"], "verbs": ["*"]},
    {"apiGroups": ["apiextensions.k8s.io"], "resources": ["*"], "verbs": ["create", "get", "list", "watch"]},
    {
        "apiGroups": ["admissionregistration.k8s.io"],
        "resources": ["validatingwebhookconfigurations", "mutatingwebhookconfigurations"],
        "verbs": ["create", "get", "patch"],
    },
    {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["list", "watch"]},
    {"apiGroups": ["events.k8s.io", ""], "resources": ["events"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create", "patch"]},
]


class Operator:
    """A process of the operator."""

    def __init__(self, root: Path, kubeconfig: Path, name: str, priority: int) -> None:
        certificate, authority = write_certificate(root, own_address())
        environment = {
            **os.environ, "KUBECONFIG": str(kubeconfig), "OPERATOR": name, "HOOK_HOST": own_address(),
            "HOOK_PORT": str(free_port()), "HOOK_CERTIFICATE": str(certificate), "HOOK_CA": str(authority),
        }  # fmt: skip
        self.log = root / f"{name}.log"
        command = [sys.executable, "-m", "kopf", "run", "-A", "--peering=lamps", f"--priority={priority}"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, lamp_operator.__file__], env=environment, stdout=log, stderr=log, cwd=root
            )

    def kill(self) -> None:
        """End it without a chance to clean up."""
        self.process.kill()
        self.process.wait()


class Workshop:
    """Requests of the administrator, and the operators."""

    def __init__(self, root: Path, api: client.ApiClient, kubeconfig: Path) -> None:
        self.core, self.admission = client.CoreV1Api(api), client.AdmissionregistrationV1Api(api)
        self.objects, self.definitions = client.CustomObjectsApi(api), client.ApiextensionsV1Api(api)
        self._root, self._kubeconfig = root, kubeconfig
        self.operators: list[Operator] = []

    def start_operator(self, name: str, priority: int) -> Operator:
        """Start an operator. It has its own directory."""
        (self._root / name).mkdir()
        operator = Operator(self._root / name, self._kubeconfig, name, priority)
        self.operators.append(operator)
        return operator

    def create(self, name: str, **spec: Any) -> Any:
        """Create a lamp."""
        lamp = {"apiVersion": f"{GROUP}/v1", "kind": "Lamp", "metadata": {"name": name}, "spec": spec}
        return self.objects.create_namespaced_custom_object(GROUP, "v1", NAMESPACE, "lamps", lamp)

    def lamp(self, name: str) -> Any:
        """Return a lamp, an empty object if there is none."""
        return _found(self.objects.get_namespaced_custom_object, GROUP, "v1", NAMESPACE, "lamps", name) or {}

    def paint(self, name: str, color: str) -> Any:
        """Change the color of a lamp."""
        body = {"spec": {"color": color}}
        return self.objects.patch_namespaced_custom_object(GROUP, "v1", NAMESPACE, "lamps", name, body)

    def delete(self, name: str) -> None:
        """Delete a lamp, without waiting for its end."""
        self.objects.delete_namespaced_custom_object(GROUP, "v1", NAMESPACE, "lamps", name)

    def config_map(self, name: str) -> Any:
        """Return a ConfigMap; None if there is none."""
        return _found(self.core.read_namespaced_config_map, name, NAMESPACE)

    def wait_until(self, what: str, holds: Any) -> Any:
        """Wait, and show the logs of the operators if it does not happen."""
        try:
            return wait_until(holds, what, 30)
        except TimeoutError as error:
            logs = "".join(f"\n--- {each.log.name}\n{each.log.read_text()[-3000:]}" for each in self.operators)
            raise AssertionError(f"{error}{logs}") from error

    def wait_for_webhooks(self, number: int) -> None:
        """Wait until webhooks are configured that are those of the operator of that number."""
        ca = self.operators[number].log.with_name("hook-ca.pem").read_text()

        def configured() -> bool:
            found = [
                _found(read, GROUP)
                for read in (
                    self.admission.read_mutating_webhook_configuration,
                    self.admission.read_validating_webhook_configuration,
                )
            ]
            return all(each and each.webhooks for each in found) and all(
                _decoded(webhook.client_config.ca_bundle) == ca for each in found for webhook in each.webhooks
            )

        self.wait_until("webhooks", configured)


def _decoded(text: str) -> str:
    return base64.b64decode(text).decode()


def _found(read: Any, *arguments: Any) -> Any:
    try:
        return read(*arguments)
    except ApiException as error:
        if error.status != 404:
            raise
        return None


def _operators_kubeconfig(root: Path, server: ApiServer, api: client.ApiClient) -> Path:
    """Return a kubeconfig of a ServiceAccount with the rights of the operator."""
    core, rbac = client.CoreV1Api(api), client.RbacAuthorizationV1Api(api)
    core.create_namespaced_service_account(NAMESPACE, {"metadata": {"name": "lamps"}})
    rbac.create_cluster_role({"metadata": {"name": "lamps"}, "rules": RULES})
    rbac.create_cluster_role_binding(
        {
            "metadata": {"name": "lamps"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "lamps"},
            "subjects": [{"kind": "ServiceAccount", "name": "lamps", "namespace": NAMESPACE}],
        }
    )
    token = core.create_namespaced_service_account_token("lamps", NAMESPACE, {"spec": {}}).status.token
    document = yaml.safe_load(server.kubeconfig.read_text())
    document["users"] = [{"name": user["name"], "user": {"token": token}} for user in document["users"]]
    path = root / "operator.kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    server = ApiServer(tmp_path)
    server.start()
    with config.new_client_from_config(str(server.kubeconfig)) as api:
        client.CoreV1Api(api).create_namespace({"metadata": {"name": NAMESPACE}})
        running = Workshop(tmp_path, api, _operators_kubeconfig(tmp_path, server, api))
        try:
            yield running
        finally:
            for operator in running.operators:
                operator.kill()
    assert server.stop() == 0


def status_of(error: pytest.ExceptionInfo[ApiException]) -> tuple[int, str]:
    """Return the code and the message of a refusal."""
    return error.value.status, json.loads(error.value.body)["message"]


def test_operator_is_killed_and_another_one_goes_on(workshop: Workshop) -> None:
    workshop.start_operator("first", priority=10)
    workshop.wait_for_webhooks(0)

    made = workshop.create("desk", color="red")
    assert made["spec"] == {"color": "red", "watts": 40, "socket": "E27"}, "a default, and the mutating webhook"
    with pytest.raises(ApiException) as refused:
        workshop.create("sofa", color="plaid")
    assert status_of(refused) == (
        422, f'admission webhook "check.{GROUP}" denied the request: plaid is no color',
    )  # fmt: skip
    with pytest.raises(ApiException) as refused:
        workshop.create("sofa", color="red", watts=1000)
    assert "spec: Invalid value: a lamp has at most 100 watts" in status_of(refused)[1]

    lit = workshop.wait_until("lit", lambda: (found := workshop.lamp("desk")).get("status", {}).get("by") and found)
    assert lit["metadata"]["finalizers"] == [f"{GROUP}/off"]
    assert lit["status"]["conditions"][0]["observedGeneration"] == lit["metadata"]["generation"] == 1
    child = workshop.config_map("lamp-desk")
    assert (child.data, child.metadata.owner_references[0].uid) == ({"color": "red"}, made["metadata"]["uid"])
    events = workshop.core.list_namespaced_event(NAMESPACE, field_selector="involvedObject.kind=Lamp").items
    assert ("Lit", "shines in red") in {(event.reason, event.message) for event in events}
    workshop.wait_until("timer", lambda: workshop.lamp("desk")["status"].get("ticks", 0) > 2)
    workshop.wait_until("daemon", lambda: (workshop.config_map("lamp-desk").metadata.annotations or {}).get("glows"))

    workshop.paint("desk", "green")
    workshop.wait_until("green", lambda: workshop.config_map("lamp-desk").data == {"color": "green"})

    # The second one waits while the first one lives.
    workshop.start_operator("second", priority=5)
    peering = ("kopf.dev", "v1", "clusterkopfpeerings", "lamps")
    workshop.wait_until(
        "two peers", lambda: len(workshop.objects.get_cluster_custom_object(*peering).get("status") or {}) == 2
    )
    workshop.create("shelf", color="white")
    workshop.wait_until("shelf", lambda: workshop.lamp("shelf").get("status", {}).get("by") == "first")
    workshop.create("attic", color="blue")
    workshop.wait_until("attic", lambda: workshop.config_map("lamp-attic"))

    workshop.operators[0].kill()
    # A deletion waits for the finalizer; a lamp that changes meanwhile is handled later.
    workshop.delete("desk")
    assert workshop.lamp("desk")["metadata"]["deletionTimestamp"]
    workshop.wait_until("desk is off", lambda: not workshop.lamp("desk"))
    workshop.wait_until("its ConfigMap is collected", lambda: workshop.config_map("lamp-desk") is None)
    assert workshop.config_map("switched-off").data == {"desk": "second"}
    workshop.paint("shelf", "black")
    workshop.wait_until("black", lambda: workshop.config_map("lamp-shelf").data == {"color": "black"})
    workshop.wait_until("shelf", lambda: workshop.lamp("shelf")["status"].get("by") == "second")
    ticks = workshop.lamp("shelf")["status"]["ticks"]
    workshop.wait_until("timer resumes", lambda: workshop.lamp("shelf")["status"]["ticks"] > ticks + 1)
    workshop.wait_until(
        "daemon resumes", lambda: workshop.config_map("lamp-shelf").metadata.annotations["glows"] == "second"
    )


def test_operator_is_away_and_comes_back(workshop: Workshop) -> None:
    workshop.start_operator("first", priority=10)
    workshop.wait_for_webhooks(0)
    workshop.create("desk", color="red")
    workshop.create("shelf", color="red")
    for name in ("desk", "shelf"):
        workshop.wait_until(name, lambda name=name: workshop.lamp(name).get("status", {}).get("by") == "first")
    workshop.operators[0].kill()

    with pytest.raises(ApiException) as refused:
        workshop.paint("desk", "green")
    code, message = status_of(refused)
    assert code == 500
    assert f'failed calling webhook "complete.{GROUP}": failed to call webhook: Post "https://' in message
    workshop.delete("shelf")
    assert workshop.lamp("shelf")["metadata"]["deletionTimestamp"], "nobody removes the finalizer"

    workshop.start_operator("again", priority=10)
    workshop.wait_for_webhooks(1)
    assert workshop.paint("desk", "green")["metadata"]["generation"] == 2
    workshop.wait_until("green", lambda: workshop.config_map("lamp-desk").data == {"color": "green"})
    workshop.wait_until("shelf is off", lambda: not workshop.lamp("shelf"))

    # kopf lets go of a kind as soon as its definition is deleted, so nobody would remove the finalizers of its objects.
    workshop.delete("desk")
    workshop.wait_until("desk is off", lambda: not workshop.lamp("desk"))
    workshop.wait_until("its ConfigMap is collected", lambda: workshop.config_map("lamp-desk") is None)
    assert workshop.config_map("switched-off").data == {"desk": "again", "shelf": "again"}
    name = f"lamps.{GROUP}"
    workshop.definitions.delete_custom_resource_definition(name)
    workshop.wait_until(
        "definition is gone", lambda: _found(workshop.definitions.read_custom_resource_definition, name) is None
    )
    workshop.wait_until(
        "its webhooks are gone",
        lambda: (
            not any(
                webhook.rules
                for webhook in workshop.admission.read_validating_webhook_configuration(GROUP).webhooks or ()
            )
        ),
    )
