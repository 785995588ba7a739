"""Commands of every kubectl on this machine against a real master."""

from __future__ import annotations

import json

from tests.testbed.apiserver.process import ApiServer
from tests.testbed.kubectl import ALL_PROGRAMS, NAMESPACE_MANIFEST, RunKubectl

MANIFEST = """\
apiVersion: v1
kind: Namespace
metadata: {name: PROJECT}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: PROJECT, labels: {app: web}}
spec:
  nodeName: elsewhere
  containers:
  - {name: main, image: "toolbox:1"}
  - {name: side, image: "toolbox:1", resources: {limits: {memory: 64Mi}}}
"""
WRONG = """\
apiVersion: v1
kind: Pod
metadata: {name: Bad_Name, namespace: default}
spec: {restartPolicy: Sometimes, subdomain: A.B, containers: [{name: a, image: b, ports: [{containerPort: 99999}]}]}
"""


def test_kubectl_is_installed() -> None:
    assert ALL_PROGRAMS


def test_manifest_is_applied_changed_and_deleted(kubectl: RunKubectl, project: str) -> None:
    manifest = MANIFEST.replace("PROJECT", project)
    assert kubectl("apply", "-f", "-", text=manifest).stdout.splitlines() == [
        f"namespace/{project} created",
        "pod/web created",
    ]
    assert "unchanged" in kubectl("apply", "-f", "-", text=manifest).stdout
    newer = manifest.replace('side, image: "toolbox:1"', 'side, image: "toolbox:2"')
    assert "pod/web configured" in kubectl("apply", "-f", "-", text=newer).stdout
    seen = json.loads(kubectl("-n", project, "get", "pod", "web", "-o", "json").stdout)
    assert [container["image"] for container in seen["spec"]["containers"]] == ["toolbox:1", "toolbox:2"]

    header, line = kubectl("-n", project, "get", "pods", "-o", "wide").stdout.splitlines()
    assert header.split()[:9] == ["NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP", "NODE", "NOMINATED", "NODE"]
    assert line.split()[:4] == ["web", "0/2", "Pending", "0"]
    assert line.split()[6] == "elsewhere"
    assert kubectl("-n", project, "get", "pods", "-l", "app!=web").stderr.startswith("No resources found")
    assert (
        kubectl("get", "pods", "-A", f"--field-selector=metadata.namespace={project}", "-o", "name").stdout
        == "pod/web\n"
    )

    kubectl("-n", project, "label", "pod", "web", "tier=front")
    kubectl("-n", project, "annotate", "pod", "web", "note=kept")
    labels = kubectl("-n", project, "get", "pod", "web", "-o", "jsonpath={.metadata.labels.tier}").stdout
    assert labels == "front"
    assert "toolbox:2" in kubectl("-n", project, "describe", "pod", "web").stdout

    kubectl("-n", project, "delete", "pod", "web", "--grace-period=0", "--force")
    kubectl("delete", "namespace", project, "--timeout=30s")
    assert 'namespaces "' in kubectl("get", "namespace", project, code=1).stderr


def test_network_resources_are_shown(kubectl: RunKubectl, project: str) -> None:
    kubectl("create", "namespace", project)
    rows = {line.split()[0]: line.split()[1:] for line in kubectl("get", "netnamespaces").stdout.splitlines()}
    assert rows["NAME"][0] == "NETID"
    assert rows["default"][0] == "0"
    assert int(rows[project][0]) >= 10
    (header, *_) = kubectl("get", "clusternetworks").stdout.splitlines()
    assert header.split()[0] == "NAME"
    assert "No resources found" in kubectl("get", "hostsubnets").stderr
    taken = json.dumps({"netid": int(rows[project][0])})
    other = f"{project}-other"
    kubectl("create", "namespace", other)
    reported = kubectl("patch", "netnamespace", other, "--type=merge", "-p", taken, code=1).stderr
    assert f"{project} has it" in reported
    kubectl("delete", "namespace", other, "--timeout=30s")
    short = kubectl("get", "netnamespace", project, "-o", "yaml").stdout
    assert f"netname: {project}" in short
    kubectl("delete", "namespace", project, "--timeout=30s")
    kubectl("get", "netnamespace", project, code=1)


def test_invalid_manifest_is_rejected_with_all_its_errors(kubectl: RunKubectl) -> None:
    reported = kubectl("create", "-f", "-", "--validate=false", text=WRONG, code=1).stderr
    for path in (
        "metadata.name",
        "spec.restartPolicy",
        "spec.subdomain",
        "spec.containers[0].ports[0].containerPort",
    ):
        assert path in reported, reported
    kubectl("-n", "default", "get", "pod", "Bad_Name", code=1)


def test_config_maps_and_secrets_are_created_and_patched(kubectl: RunKubectl, project: str) -> None:
    kubectl("create", "namespace", project)
    on = ("-n", project)
    kubectl(*on, "create", "configmap", "c", "--from-literal=a=1", "--from-literal=b=two\nlines")
    kubectl(*on, "create", "secret", "generic", "s", "--from-literal=password=hidden")
    assert kubectl(*on, "get", "cm", "c", "-o", "jsonpath={.data.b}").stdout == "two\nlines"
    assert kubectl(*on, "get", "cm", "c").stdout.splitlines()[1].split()[:2] == ["c", "2"]
    assert kubectl(*on, "get", "secret", "s").stdout.splitlines()[1].split()[:3] == ["s", "Opaque", "1"]
    assert kubectl(*on, "get", "secrets", "--field-selector=type=Opaque", "-o", "name").stdout == "secret/s\n"
    kubectl(*on, "patch", "secret", "s", "-p", '{"stringData": {"user": "me"}}')
    seen = json.loads(kubectl(*on, "get", "secret", "s", "-o", "json").stdout)
    assert seen["data"] == {"password": "aGlkZGVu", "user": "bWU="}
    kubectl(*on, "patch", "configmap", "c", "-p", '{"immutable": true}')
    reported = kubectl(*on, "patch", "configmap", "c", "-p", '{"data": {"a": "2"}}', code=1).stderr
    assert "field is immutable when `immutable` is set" in reported
    assert 'configmap "c" deleted' in kubectl(*on, "delete", "configmap", "c").stdout
    kubectl("delete", "namespace", project, "--timeout=30s")
    assert "not found" in kubectl(*on, "get", "secret", "s", code=1).stderr


def test_conflicting_edit_is_rejected(kubectl: RunKubectl, project: str) -> None:
    kubectl("create", "namespace", project)
    old = kubectl("get", "namespace", project, "-o", "json").stdout
    kubectl("label", "namespace", project, "by=another")
    reported = kubectl("replace", "-f", "-", text=old, code=1).stderr
    assert "the object has been modified" in reported
    kubectl("delete", "namespace", project, "--timeout=30s")


def test_version_and_discovery_commands_work(kubectl: RunKubectl) -> None:
    assert "podlane" in kubectl("version", "-o", "json").stdout
    words = kubectl("api-resources", "-o", "name").stdout.split()
    assert {"pods", "nodes", "namespaces", "hostsubnets.network.openshift.io"} <= set(words)


def test_describe_shows_events_of_its_object(kubectl: RunKubectl, project: str) -> None:
    kubectl("apply", "-f", "-", text=MANIFEST.replace("PROJECT", project))
    pod = json.loads(kubectl("-n", project, "get", "pod", "web", "-o", "json").stdout)
    about = {"kind": "Pod", "apiVersion": "v1", "name": "web", "namespace": project, "uid": pod["metadata"]["uid"]}
    for name, reason, kind in (("web.1", "Started", "Normal"), ("web.2", "BackOff", "Warning")):
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": project},
            "involvedObject": {**about, "fieldPath": "spec.containers{main}"},
            "reason": reason,
            "message": f"the {reason} of it",
            "type": kind,
            "count": 3,
            "firstTimestamp": "2026-01-01T00:00:00Z",
            "lastTimestamp": "2099-01-01T00:00:00Z",
            "source": {"component": "podlane-node-agent", "host": "elsewhere"},
        }
        kubectl("apply", "-f", "-", text=json.dumps(event))
    reported = kubectl("-n", project, "describe", "pod", "web").stdout.partition("Events:")[2]
    assert "podlane-node-agent" in reported
    assert "the Started of it" in reported
    assert "Warning  BackOff" in reported
    header, *rows = kubectl("-n", project, "get", "events").stdout.splitlines()
    assert header.split() == ["LAST", "SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]
    assert {line.split()[2]: line.split()[3] for line in rows} == {"Started": "pod/web", "BackOff": "pod/web"}
    (only,) = kubectl("-n", project, "get", "ev", "--field-selector=type=Warning", "-o", "name").stdout.splitlines()
    assert only == "event/web.2"
    assert "BackOff" in kubectl("-n", project, "events", "--for", "pod/web", "--types=Warning").stdout
    kubectl("delete", "namespace", project, "--timeout=30s", "--wait=false")
    kubectl("-n", project, "delete", "pod", "web", "--grace-period=0", "--force", "--ignore-not-found")
    kubectl("wait", "--for=delete", f"namespace/{project}", "--timeout=30s")
    assert "No resources found" in kubectl("-n", project, "get", "events").stderr


def test_server_side_apply_tracks_field_owners(kubectl: RunKubectl, project: str) -> None:
    def config_map(data: str) -> str:
        return f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: shared, namespace: {project}}}\ndata: {data}\n"

    def apply(data: str, manager: str, *more: str, code: int = 0) -> str:
        words = ("apply", "--server-side", f"--field-manager={manager}", *more, "-f", "-")
        done = kubectl(*words, text=config_map(data), code=code)
        return done.stdout + done.stderr

    kubectl("apply", "-f", "-", text=NAMESPACE_MANIFEST.replace("PROJECT", project))
    assert "configmap/shared serverside-applied" in apply("{a: one, b: one}", "first")
    reported = apply("{a: two}", "second", code=1)
    assert "Apply failed with 1 conflict: conflict with " in reported
    assert ".data.a" in reported
    assert "serverside-applied" in apply("{a: two}", "second", "--force-conflicts")
    apply("{b: one}", "first")
    assert json.loads(kubectl("-n", project, "get", "cm", "shared", "-o", "json").stdout)["data"] == {
        "a": "two",
        "b": "one",
    }
    kubectl("-n", project, "patch", "cm", "shared", "-p", '{"data": {"b": "patched"}}')
    assert '"kubectl-patch"' in apply("{b: one}", "first", code=1)
    apply("{}", "second")
    stored = json.loads(kubectl("-n", project, "get", "cm", "shared", "-o", "json", "--show-managed-fields").stdout)
    assert stored["data"] == {"b": "patched"}
    owned = {entry["manager"]: entry["fieldsV1"] for entry in stored["metadata"]["managedFields"]}
    assert owned == {"kubectl-patch": {"f:data": {"f:b": {}}}, "second": {"f:data": {}}}


TAKEN_OVER = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: main, image: a}]}
---
apiVersion: batch/v1
kind: Job
metadata: {name: once}
spec:
  template:
    spec: {restartPolicy: Never, containers: [{name: main, image: a}]}
"""


def test_server_side_apply_leaves_what_others_have_set_before_it(kubectl: RunKubectl, project: str) -> None:
    kubectl("apply", "-f", "-", text=NAMESPACE_MANIFEST.replace("PROJECT", project))
    on = ("-n", project)
    kubectl(*on, "apply", "-f", "-", text=TAKEN_OVER)
    kubectl(*on, "scale", "deployment", "web", "--replicas=5")
    for _ in range(2):
        assert "failed" not in kubectl(*on, "apply", "--server-side", "-f", "-", text=TAKEN_OVER).stderr
    shown = kubectl(*on, "get", "deployment", "web", "-o", "jsonpath={.spec.replicas} {.metadata.managedFields}")
    replicas, managed = shown.stdout.split(" ", 1)
    assert replicas == "5", "the manifest does not say how many"
    assert {each["manager"] for each in json.loads(managed)} >= {"kubectl", "before-first-apply"}
    text = TAKEN_OVER.replace("image: a", "image: b, imagePullPolicy: Never", 1)
    assert (
        "web serverside-applied" in kubectl(*on, "apply", "--server-side", "-f", "-", text=text.split("---")[0]).stdout
    ), "also a field that had its default"


def test_server_side_apply_takes_over_client_side_applied_fields(kubectl: RunKubectl, project: str) -> None:
    text = f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: old, namespace: {project}}}\ndata: {{a: one}}\n"
    kubectl("apply", "-f", "-", text=NAMESPACE_MANIFEST.replace("PROJECT", project))
    kubectl("apply", "-f", "-", text=text)
    kubectl("apply", "--server-side", "-f", "-", text=text)
    kubectl("apply", "--server-side", "-f", "-", text=text.replace("one", "two"))
    assert kubectl("-n", project, "get", "cm", "old", "-o", "jsonpath={.data.a}").stdout == "two"


def test_deployments_are_created_by_imperative_commands(kubectl: RunKubectl, project: str) -> None:
    kubectl("apply", "-f", "-", text=NAMESPACE_MANIFEST.replace("PROJECT", project))
    kubectl("-n", project, "create", "deployment", "typed", "--image=toolbox:1", "--replicas=2", "--port=80")
    actual = json.loads(kubectl("-n", project, "get", "deployment", "typed", "-o", "json").stdout)
    assert actual["spec"]["replicas"] == 2
    assert actual["spec"]["template"]["spec"]["containers"][0]["ports"] == [{"containerPort": 80, "protocol": "TCP"}]
    kubectl("-n", project, "scale", "deployment", "typed", "--replicas=0", "--current-replicas=2")
    assert kubectl("-n", project, "get", "deploy/typed", "-o", "jsonpath={.spec.replicas}").stdout == "0"
    kubectl("-n", project, "set", "image", "deployment/typed", "toolbox=toolbox:2")
    assert "toolbox:2" in kubectl("-n", project, "get", "deploy", "-o", "wide").stdout
    kubectl("-n", project, "delete", "deployment", "typed")


def test_services_are_shown_exposed_and_changed(kubectl: RunKubectl, project: str) -> None:
    kubectl("apply", "-f", "-", text=NAMESPACE_MANIFEST.replace("PROJECT", project))
    kubectl("-n", project, "create", "deployment", "shop", "--image=toolbox:1", "--port=8080")
    kubectl("-n", project, "expose", "deployment", "shop", "--port=80", "--target-port=8080")
    shown = kubectl("-n", project, "get", "svc", "shop", "--no-headers").stdout
    name, kind, address, outside, ports = shown.split()[:5]
    assert (name, kind, outside, ports) == ("shop", "ClusterIP", "<none>", "80/TCP")
    assert address.startswith("172.30.")
    kubectl("-n", project, "patch", "svc", "shop", "-p", '{"spec": {"type": "NodePort"}}')
    assert "80:30" in kubectl("-n", project, "get", "svc", "shop").stdout
    kubectl("-n", project, "create", "service", "externalname", "far", "--external-name=example.org")
    assert "example.org" in kubectl("-n", project, "get", "svc", "far").stdout
    assert "Endpoints:" in kubectl("-n", project, "describe", "svc", "shop").stdout
    kubectl("-n", project, "delete", "deployment,svc", "--all")


def test_explain_shows_the_fields(kubectl: RunKubectl) -> None:
    reported = kubectl("explain", "pod.spec.containers.ports").stdout
    assert "containerPort\t<integer> -required-" in reported
    assert "hostIP\t<string>" in reported
    assert "A request of a project for storage." in kubectl("explain", "pvc").stdout
    assert "netid\t<integer>" in kubectl("explain", "netnamespaces").stdout
    assert "resources\t<Object>" in kubectl("explain", "pod.spec").stdout
    assert "resizePolicy" in kubectl("explain", "pod", "--recursive").stdout
    assert "managedFields" in kubectl("explain", "deployment.metadata").stdout
    assert 'field "nothing" does not exist' in kubectl("explain", "pod.nothing", code=1).stderr


def test_roles_and_bindings_are_created_by_imperative_commands(kubectl: RunKubectl, project: str) -> None:
    kubectl("apply", "-f", "-", text=NAMESPACE_MANIFEST.replace("PROJECT", project))
    kubectl("-n", project, "create", "role", "reader", "--verb=get,list", "--resource=pods,services")
    kubectl("-n", project, "create", "rolebinding", "readers", "--role=reader", f"--serviceaccount={project}:default")
    assert f"{project}/default" in kubectl("-n", project, "get", "rolebinding", "-o", "wide").stdout
    assert "Role/reader" in kubectl("-n", project, "get", "rolebinding").stdout
    kubectl("create", "clusterrole", f"{project}:all", "--verb=*", "--resource=nodes")
    kubectl("create", "clusterrolebinding", f"{project}:everybody", f"--clusterrole={project}:all", "--group=all")
    assert "pods" in kubectl("-n", project, "describe", "role", "reader").stdout
    kubectl("delete", f"clusterrole/{project}:all", f"clusterrolebinding/{project}:everybody")


def test_auth_whoami_and_can_i_report_the_user_and_permissions(kubectl: RunKubectl, server: ApiServer) -> None:
    assert kubectl("auth", "can-i", "delete", "nodes").stdout.strip() == "yes"
    assert "*.*" in kubectl("auth", "can-i", "--list").stdout


def test_create_token_authenticates_the_service_account(kubectl: RunKubectl, server: ApiServer, project: str) -> None:
    kubectl("apply", "-f", "-", text=NAMESPACE_MANIFEST.replace("PROJECT", project))
    kubectl("-n", project, "create", "serviceaccount", "robot")
    token = kubectl("-n", project, "create", "token", "robot").stdout.strip()
    anonymous = ("--kubeconfig=/dev/null", f"--server={server.url}", "--insecure-skip-tls-verify", f"--token={token}")
    assert kubectl(*anonymous, "auth", "can-i", "get", "pods", code=1).stdout.strip() == "no"
    refused = kubectl(*anonymous, "get", "pods", code=1).stderr
    assert f'User "system:serviceaccount:{project}:robot" cannot list resource "pods"' in refused
    kubectl("-n", project, "delete", "serviceaccount", "robot")
    assert "Unauthorized" in kubectl(*anonymous, "get", "pods", code=1).stderr
    assert kubectl("-n", project, "get", "serviceaccount", "default", "-o", "name").stdout
    assert "BEGIN CERTIFICATE" in kubectl("-n", project, "get", "configmap", "kube-root-ca.crt", "-o", "yaml").stdout
