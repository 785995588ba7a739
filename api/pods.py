"""What is wrong with a Pod whose shape is right, and what of it is kept but not acted on. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import asdict, replace

from api import (
    bandwidth,
    init_containers,
    names,
    placement,
    pod_network,
    probes,
    quantity,
    security,
    variable_checks,
    volume_checks,
)
from api.addresses import out_of_reach
from api.defaults import GRACE_SECONDS
from api.objects import (
    Container,
    ContainerPort,
    Pod,
    PodSpec,
    ResourceRequirements,
)
from api.pod_affinity import check_spread
from api.schema import FORBIDDEN, MISSING, Problem, shown
from api.schema import choices as _choices
from api.schema import duplicates as _duplicates

RESTART_POLICIES = ("Always", "OnFailure", "Never")
PULL_POLICIES = ("Always", "IfNotPresent", "Never")
PROTOCOLS = ("TCP", "UDP", "SCTP")
DNS_POLICIES = ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None")
MESSAGE_POLICIES = ("File", "FallbackToLogsOnError")
MOST_SECONDS = 2**31 - 1

UNMET_IN_SPEC = ("resource_claims",)
UNMET_IN_CONTAINER = ("volume_devices",)
"""Without these the pod could not run as it is meant to, so it is refused."""

IDLE_IN_SPEC = ("overhead",)
IDLE_IN_CONTAINER = ("resize_policy",)


def check(pod: Pod) -> Iterator[Problem]:
    """Every problem, by path."""
    spec = pod.spec
    yield from _check_addresses(pod)
    yield from bandwidth.check(pod.metadata.annotations)
    yield from _choices(
        ("spec.restartPolicy", spec.restart_policy, RESTART_POLICIES),
        ("spec.dnsPolicy", spec.dns_policy, DNS_POLICIES),
    )
    yield from _unmet("spec", asdict(spec), UNMET_IN_SPEC)
    yield from pod_network.check(spec)
    for number, secret in enumerate(spec.image_pull_secrets):
        if names.dns_subdomain(secret.name):
            yield Problem(f"spec.imagePullSecrets[{number}].name", shown(secret.name), names.dns_subdomain(secret.name))
    for path, seconds, least in (
        ("spec.terminationGracePeriodSeconds", spec.termination_grace_period_seconds, 0),
        ("spec.activeDeadlineSeconds", spec.active_deadline_seconds, 1),
    ):
        if seconds is not None and not least <= seconds <= MOST_SECONDS:
            yield Problem(path, shown(seconds), f"{least} to {MOST_SECONDS} seconds are accepted")
    yield from placement.check(spec)
    yield from _gates(spec)
    yield from check_spread("spec.topologySpreadConstraints", spec.topology_spread_constraints)
    for path, name, syntax in (
        ("spec.nodeName", spec.node_name, names.dns_subdomain),
        ("spec.hostname", spec.hostname, names.dns_label),
    ):
        if name and syntax(name):
            yield Problem(path, shown(name), syntax(name))
    yield from security.check_pod("spec.securityContext", spec.security_context)
    if spec.host_users is False:
        wanted = "true is accepted: Docker gives users of their own to all containers or to none"
        yield Problem("spec.hostUsers", "false", wanted, FORBIDDEN)
    yield from volume_checks.check(spec.volumes)
    for number, gate in enumerate(spec.readiness_gates):
        if names.label_key(gate.condition_type):
            path = f"spec.readinessGates[{number}].conditionType"
            yield Problem(path, shown(gate.condition_type), names.label_key(gate.condition_type))
    yield from _containers(spec)


def _check_addresses(pod: Pod) -> Iterator[Problem]:
    """Those that its node tells: others than the pod's would be reached by who asks for the pod."""
    rows = [("status.podIP", pod.status.pod_ip)]
    rows += [(f"status.podIPs[{number}].ip", row.ip) for number, row in enumerate(pod.status.pod_ips)]
    for path, text in rows:
        if text and (why := out_of_reach(text)):
            yield Problem(path, shown(text), why)


def _gates(spec: PodSpec) -> Iterator[Problem]:
    for number, gate in enumerate(spec.scheduling_gates):
        if names.label_key(gate.name):
            yield Problem(f"spec.schedulingGates[{number}].name", shown(gate.name), names.label_key(gate.name))
    yield from _duplicates("spec.schedulingGates[{}].name", [gate.name for gate in spec.scheduling_gates])
    if spec.node_name and spec.scheduling_gates:
        why = "cannot be set until all schedulingGates have been cleared"
        yield Problem("spec.nodeName", shown(spec.node_name), why, FORBIDDEN)


def _containers(spec: PodSpec) -> Iterator[Problem]:
    if not spec.containers:
        yield Problem("spec.containers", "[]", "at least one container is required", MISSING)
    yield from init_containers.check(spec)
    volumes = {volume.name for volume in spec.volumes}
    wished = spec.termination_grace_period_seconds
    grace = GRACE_SECONDS if wished is None else wished
    for path, container in _places(spec):
        yield from _container(path, container, volumes)
        yield from probes.check(path, container, grace, spec.host_network)


def _places(spec: PodSpec) -> Iterator[tuple[str, Container]]:
    for kind, rows in (
        ("containers", spec.containers),
        ("initContainers", spec.init_containers),
        ("ephemeralContainers", spec.ephemeral_containers),
    ):
        for number, container in enumerate(rows):
            yield f"spec.{kind}[{number}]", container


def _container(path: str, container: Container, known_volumes: set[str]) -> Iterator[Problem]:
    if not container.name:
        yield Problem(f"{path}.name", '""', "a name is required", MISSING)
    elif names.dns_label(container.name):
        yield Problem(f"{path}.name", shown(container.name), names.dns_label(container.name))
    if not container.image.strip():
        yield Problem(
            f"{path}.image", shown(container.image), 'an image is required, for example "nginx:1.27"', MISSING
        )
    yield from _choices(
        (f"{path}.imagePullPolicy", container.image_pull_policy, PULL_POLICIES),
        (f"{path}.terminationMessagePolicy", container.termination_message_policy, MESSAGE_POLICIES),
    )
    yield from _unmet(path, asdict(container), UNMET_IN_CONTAINER)
    yield from security.check_container(f"{path}.securityContext", container.security_context)
    if container.working_dir and not container.working_dir.startswith("/"):
        yield Problem(f"{path}.workingDir", shown(container.working_dir), "an absolute path is accepted")
    yield from variable_checks.check(path, container)
    yield from _ports(f"{path}.ports", container.ports)
    privileged = bool(container.security_context and container.security_context.privileged)
    yield from volume_checks.check_mounts(f"{path}.volumeMounts", container.volume_mounts, known_volumes, privileged)
    yield from _resources(f"{path}.resources", container.resources)


def _ports(path: str, ports: tuple[ContainerPort, ...]) -> Iterator[Problem]:
    for number, port in enumerate(ports):
        for field, value, least in (("containerPort", port.container_port, 1), ("hostPort", port.host_port, 0)):
            if not least <= value <= 65535:
                yield Problem(f"{path}[{number}].{field}", shown(value), "a port is 1 to 65535")
        yield from _choices((f"{path}[{number}].protocol", port.protocol, PROTOCOLS))
    yield from _duplicates(path + "[{}].name", [port.name for port in ports])


def _resources(path: str, resources: ResourceRequirements) -> Iterator[Problem]:
    good = set()
    for kind, wishes in (("limits", resources.limits), ("requests", resources.requests)):
        for name, text in wishes.items():
            try:
                if quantity.parse(text) < 0:
                    yield Problem(f"{path}.{kind}[{name}]", shown(text), "0 or more is accepted")
                good.add((kind, name))
            except quantity.BadQuantity as error:
                yield Problem(f"{path}.{kind}[{name}]", shown(text), str(error))
    for name, text in resources.requests.items():
        if {("requests", name), ("limits", name)} <= good:
            limit = resources.limits[name]
            if quantity.parse(text) > quantity.parse(limit):
                yield Problem(f"{path}.requests[{name}]", shown(text), f"no more than the limit {limit} is accepted")


def _unmet(path: str, held: dict[str, object], refused: Iterable[str]) -> Iterator[Problem]:
    for field in refused:
        if held[field]:
            yield Problem(f"{path}.{_wire(field)}", "given", "is not supported by this version", FORBIDDEN)


def warnings(pod: Pod) -> Iterator[str]:
    """Fields that are kept but that this version does not act on."""
    places: list[tuple[str, dict[str, object], tuple[str, ...]]] = [("spec", asdict(pod.spec), IDLE_IN_SPEC)]
    for path, container in _places(pod.spec):
        places.append((path, asdict(container), IDLE_IN_CONTAINER))
    for path, held, idle in places:
        for field in idle:
            if held[field]:
                yield f"{path}.{_wire(field)}: kept, but this version does not act on it"


def immutable(old: Pod, new: Pod) -> Iterator[Problem]:
    """A pod's spec stays as it is but for images, a nearer deadline, tolerations and a shorter grace period."""
    before, after = old.spec.active_deadline_seconds, new.spec.active_deadline_seconds
    if before is not None and (after is None or after > before):
        yield Problem("spec.activeDeadlineSeconds", shown(after), f"{before} or less is accepted", FORBIDDEN)
    added = [gate.name for gate in new.spec.scheduling_gates if gate not in old.spec.scheduling_gates]
    if added:
        why = "only deletion is allowed, but found new scheduling gate"
        yield Problem("spec.schedulingGates", shown(added), why, FORBIDDEN)
    if _frozen_part(old.spec) != _frozen_part(new.spec):
        yield Problem(
            "spec",
            "changed",
            "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
            "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
            "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
            FORBIDDEN,
        )


def _frozen_part(spec: PodSpec) -> PodSpec:
    return replace(
        spec,
        init_containers=tuple(replace(container, image="") for container in spec.init_containers),
        containers=tuple(replace(container, image="") for container in spec.containers),
        active_deadline_seconds=None,
        tolerations=(),
        scheduling_gates=(),
        termination_grace_period_seconds=None,
    )


def _wire(field: str) -> str:
    abbreviated = {"host_pid": "hostPID", "host_ipc": "hostIPC", "downward_api": "downwardAPI"}
    first, *rest = field.split("_")
    return abbreviated.get(field) or first + "".join(part.capitalize() for part in rest)
