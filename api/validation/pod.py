"""Checks of a Pod: names, DNS, host ports, init containers, bandwidth. Pure.

Source: facts/node.md 4, 5.2 and 17.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address

from msgspec.structs import asdict, replace

from api.core.pod import Container, ContainerPort, EphemeralContainer, Pod, PodDNSConfig, PodSpec, ResourceRequirements
from api.core.resources import EGRESS, INGRESS, LEAST, MOST, is_sidecar
from api.meta import names, quantity
from api.meta.schema import DUPLICATE, FORBIDDEN, MISSING, NOT_SUPPORTED, FieldError, quoted
from api.meta.schema import duplicate_values as _duplicates
from api.meta.schema import unsupported_values as _choices
from api.network.addresses import unreachable_reason
from api.validation import containers, placement
from api.validation import volumes as volume_checks
from api.validation.defaults import GRACE_SECONDS
from api.validation.placement import check_spread


def check_bandwidth(annotations: Mapping[str, str]) -> Iterator[FieldError]:
    """What is wrong with them."""
    for key in (INGRESS, EGRESS):
        text = annotations.get(key)
        if text is None:
            continue
        path = f"metadata.annotations[{key}]"
        try:
            if not LEAST <= quantity.parse(text) <= MOST:
                yield FieldError(path, quoted(text), "1k to 1P bits a second are accepted")
        except quantity.BadQuantity as error:
            yield FieldError(path, quoted(text), str(error))


MOST_NAMESERVERS, MOST_SEARCHES, LONGEST_SEARCH = 3, 32, 2048


def check_pod_network(spec: PodSpec) -> Iterator[FieldError]:
    """Every problem, by path."""
    if spec.subdomain and names.dns_label_error(spec.subdomain):
        yield FieldError("spec.subdomain", quoted(spec.subdomain), names.dns_label_error(spec.subdomain))
    if spec.host_pid and spec.share_process_namespace:
        yield FieldError("spec.shareProcessNamespace", "true", "only false is accepted with hostPID", FORBIDDEN)
    for number, alias in enumerate(spec.host_aliases):
        path = f"spec.hostAliases[{number}]"
        yield from _address(f"{path}.ip", alias.ip)
        for place, name in enumerate(alias.hostnames):
            if names.dns_subdomain_error(name):
                yield FieldError(f"{path}.hostnames[{place}]", quoted(name), names.dns_subdomain_error(name))
    yield from _dns("spec.dnsConfig", spec)
    yield from _host_ports(spec)


def _dns(path: str, spec: PodSpec) -> Iterator[FieldError]:
    config = spec.dns_config or PodDNSConfig()
    if spec.dns_policy == "None" and not config.nameservers:
        wanted = "at least one is required with dnsPolicy None"
        yield FieldError(f"{path}.nameservers", "[]", wanted, MISSING)
    if len(config.nameservers) > MOST_NAMESERVERS:
        found = str(len(config.nameservers))
        yield FieldError(f"{path}.nameservers", found, f"at most {MOST_NAMESERVERS} are accepted")
    for number, server in enumerate(config.nameservers):
        yield from _address(f"{path}.nameservers[{number}]", server)
    if len(config.searches) > MOST_SEARCHES or len(" ".join(config.searches)) > LONGEST_SEARCH:
        found = f"{len(config.searches)} of {len(' '.join(config.searches))} characters"
        wanted = f"at most {MOST_SEARCHES} of together {LONGEST_SEARCH} characters are accepted"
        yield FieldError(f"{path}.searches", found, wanted)
    for number, domain in enumerate(config.searches):
        bare = domain.rstrip(".")
        if bare and names.dns_subdomain_error(bare.replace("_", "-")):
            yield FieldError(f"{path}.searches[{number}]", quoted(domain), names.dns_subdomain_error(bare))
    for number, option in enumerate(config.options):
        if not option.name:
            yield FieldError(f"{path}.options[{number}].name", '""', "a name is required", MISSING)


def _host_ports(spec: PodSpec) -> Iterator[FieldError]:
    taken: set[tuple[int, str, str]] = set()
    for kind, rows in (("containers", spec.containers), ("initContainers", spec.init_containers)):
        for number, container in enumerate(rows):
            for place, port in enumerate(container.ports):
                path = f"spec.{kind}[{number}].ports[{place}]"
                yield from _host_port(path, port, spec.host_network)
                key = (port.host_port, port.protocol or "TCP", port.host_ip)
                if port.host_port and key in taken:
                    yield FieldError(f"{path}.hostPort", quoted(port.host_port), "must be unique", DUPLICATE)
                taken.add(key)


def _host_port(path: str, port: ContainerPort, host_network: bool) -> Iterator[FieldError]:
    if port.host_ip:
        yield from _address(f"{path}.hostIP", port.host_ip)
    if host_network and port.host_port not in {0, port.container_port}:
        wanted = f"must equal containerPort, {port.container_port}, with hostNetwork"
        yield FieldError(f"{path}.hostPort", quoted(port.host_port), wanted)


def _address(path: str, text: str) -> Iterator[FieldError]:
    try:
        ip_address(text)
    except ValueError:
        yield FieldError(path, quoted(text), "an IP address is accepted")


OF_LASTING_CONTAINERS = ("lifecycle", "liveness_probe", "readiness_probe", "startup_probe")
NOT_FOR_EPHEMERAL = (*OF_LASTING_CONTAINERS, "ports")


def check_init_containers(spec: PodSpec) -> Iterator[FieldError]:
    """Every problem, by path, that other containers do not have as well."""
    yield from _names(spec)
    for number, container in enumerate(spec.init_containers):
        yield from _init(f"spec.initContainers[{number}]", container)
    for number, container in enumerate(spec.containers):
        if container.restart_policy is not None:
            wanted = "only init containers have a restartPolicy of their own"
            yield FieldError(
                f"spec.containers[{number}].restartPolicy", quoted(container.restart_policy), wanted, FORBIDDEN
            )
    known = {container.name for container in (*spec.init_containers, *spec.containers)}
    for number, extra in enumerate(spec.ephemeral_containers):
        yield from _ephemeral(f"spec.ephemeralContainers[{number}]", extra, known)


def _names(spec: PodSpec) -> Iterator[FieldError]:
    """Names are unique in the whole pod."""
    seen: set[str] = set()
    for kind, rows in (
        ("containers", spec.containers),
        ("initContainers", spec.init_containers),
        ("ephemeralContainers", spec.ephemeral_containers),
    ):
        for number, name in enumerate(row.name for row in rows):
            if name and name in seen:
                yield FieldError(f"spec.{kind}[{number}].name", quoted(name), "must be unique", DUPLICATE)
            seen.add(name)


def _init(path: str, container: Container) -> Iterator[FieldError]:
    if container.restart_policy not in {None, "Always"}:
        yield FieldError(f"{path}.restartPolicy", quoted(container.restart_policy), "Always is accepted", NOT_SUPPORTED)
    if not is_sidecar(container):
        why = "is accepted only with restartPolicy Always: an init container ends before others start"
        yield from _without(path, container, OF_LASTING_CONTAINERS, why)


def _ephemeral(path: str, container: EphemeralContainer, known: set[str]) -> Iterator[FieldError]:
    yield from _without(path, container, NOT_FOR_EPHEMERAL, "is not accepted for an ephemeral container")
    if container.resources.limits or container.resources.requests:
        yield FieldError(f"{path}.resources", "given", "is not accepted for an ephemeral container", FORBIDDEN)
    if container.restart_policy is not None:
        yield FieldError(f"{path}.restartPolicy", quoted(container.restart_policy), "it is never restarted", FORBIDDEN)
    if container.target_container_name and container.target_container_name not in known:
        wanted = f"a container of this pod is accepted: {', '.join(sorted(known))}"
        yield FieldError(f"{path}.targetContainerName", quoted(container.target_container_name), wanted)


def _without(path: str, container: Container, refused: tuple[str, ...], why: str) -> Iterator[FieldError]:
    held = asdict(container)
    for field in refused:
        if held[field]:
            first, *rest = field.split("_")
            yield FieldError(f"{path}.{first}{''.join(word.capitalize() for word in rest)}", "given", why, FORBIDDEN)


def added(old: Pod, new: Pod) -> tuple[Pod, tuple[FieldError, ...]]:
    """The pod with the new one's ephemeral containers and nothing else of it; those that are there stay."""
    wished = {one.name: one for one in new.spec.ephemeral_containers}
    problems = tuple(
        FieldError(
            f"spec.ephemeralContainers[{number}]",
            "removed" if one.name not in wished else "changed",
            "existing ephemeral containers may not be changed or removed",
            FORBIDDEN,
        )
        for number, one in enumerate(old.spec.ephemeral_containers)
        if wished.get(one.name) != one
    )
    spec = replace(old.spec, ephemeral_containers=new.spec.ephemeral_containers)
    return replace(old, spec=spec), problems


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


def check_pod(pod: Pod) -> Iterator[FieldError]:
    """Every problem, by path."""
    spec = pod.spec
    yield from _check_addresses(pod)
    yield from check_bandwidth(pod.metadata.annotations)
    yield from _choices(
        ("spec.restartPolicy", spec.restart_policy, RESTART_POLICIES),
        ("spec.dnsPolicy", spec.dns_policy, DNS_POLICIES),
    )
    yield from _unmet("spec", asdict(spec), UNMET_IN_SPEC)
    yield from check_pod_network(spec)
    for number, secret in enumerate(spec.image_pull_secrets):
        if names.dns_subdomain_error(secret.name):
            yield FieldError(
                f"spec.imagePullSecrets[{number}].name", quoted(secret.name), names.dns_subdomain_error(secret.name)
            )
    for path, seconds, least in (
        ("spec.terminationGracePeriodSeconds", spec.termination_grace_period_seconds, 0),
        ("spec.activeDeadlineSeconds", spec.active_deadline_seconds, 1),
    ):
        if seconds is not None and not least <= seconds <= MOST_SECONDS:
            yield FieldError(path, quoted(seconds), f"{least} to {MOST_SECONDS} seconds are accepted")
    yield from placement.check_placement(spec)
    yield from _gates(spec)
    yield from check_spread("spec.topologySpreadConstraints", spec.topology_spread_constraints)
    for path, name, syntax in (
        ("spec.nodeName", spec.node_name, names.dns_subdomain_error),
        ("spec.hostname", spec.hostname, names.dns_label_error),
    ):
        if name and syntax(name):
            yield FieldError(path, quoted(name), syntax(name))
    yield from containers.check_pod_security("spec.securityContext", spec.security_context)
    if spec.host_users is False:
        wanted = "true is accepted: Docker gives users of their own to all containers or to none"
        yield FieldError("spec.hostUsers", "false", wanted, FORBIDDEN)
    yield from volume_checks.check_volumes(spec.volumes)
    for number, gate in enumerate(spec.readiness_gates):
        if names.label_key_error(gate.condition_type):
            path = f"spec.readinessGates[{number}].conditionType"
            yield FieldError(path, quoted(gate.condition_type), names.label_key_error(gate.condition_type))
    yield from _containers(spec)


def _check_addresses(pod: Pod) -> Iterator[FieldError]:
    """Those that its node tells: others than the pod's would be reached by who asks for the pod."""
    rows = [("status.podIP", pod.status.pod_ip)]
    rows += [(f"status.podIPs[{number}].ip", row.ip) for number, row in enumerate(pod.status.pod_ips)]
    for path, text in rows:
        if text and (why := unreachable_reason(text)):
            yield FieldError(path, quoted(text), why)


def _gates(spec: PodSpec) -> Iterator[FieldError]:
    for number, gate in enumerate(spec.scheduling_gates):
        if names.label_key_error(gate.name):
            yield FieldError(
                f"spec.schedulingGates[{number}].name", quoted(gate.name), names.label_key_error(gate.name)
            )
    yield from _duplicates("spec.schedulingGates[{}].name", [gate.name for gate in spec.scheduling_gates])
    if spec.node_name and spec.scheduling_gates:
        why = "cannot be set until all schedulingGates have been cleared"
        yield FieldError("spec.nodeName", quoted(spec.node_name), why, FORBIDDEN)


def _containers(spec: PodSpec) -> Iterator[FieldError]:
    if not spec.containers:
        yield FieldError("spec.containers", "[]", "at least one container is required", MISSING)
    yield from check_init_containers(spec)
    volumes = {volume.name for volume in spec.volumes}
    wished = spec.termination_grace_period_seconds
    grace = GRACE_SECONDS if wished is None else wished
    for path, container in _places(spec):
        yield from _container(path, container, volumes)
        yield from containers.check_probes(path, container, grace, spec.host_network)


def _places(spec: PodSpec) -> Iterator[tuple[str, Container]]:
    for kind, rows in (
        ("containers", spec.containers),
        ("initContainers", spec.init_containers),
        ("ephemeralContainers", spec.ephemeral_containers),
    ):
        for number, container in enumerate(rows):
            yield f"spec.{kind}[{number}]", container


def _container(path: str, container: Container, known_volumes: set[str]) -> Iterator[FieldError]:
    if not container.name:
        yield FieldError(f"{path}.name", '""', "a name is required", MISSING)
    elif names.dns_label_error(container.name):
        yield FieldError(f"{path}.name", quoted(container.name), names.dns_label_error(container.name))
    if not container.image.strip():
        yield FieldError(
            f"{path}.image", quoted(container.image), 'an image is required, for example "nginx:1.27"', MISSING
        )
    yield from _choices(
        (f"{path}.imagePullPolicy", container.image_pull_policy, PULL_POLICIES),
        (f"{path}.terminationMessagePolicy", container.termination_message_policy, MESSAGE_POLICIES),
    )
    yield from _unmet(path, asdict(container), UNMET_IN_CONTAINER)
    yield from containers.check_container_security(f"{path}.securityContext", container.security_context)
    if container.working_dir and not container.working_dir.startswith("/"):
        yield FieldError(f"{path}.workingDir", quoted(container.working_dir), "an absolute path is accepted")
    yield from containers.check_env(path, container)
    yield from _ports(f"{path}.ports", container.ports)
    privileged = bool(container.security_context and container.security_context.privileged)
    yield from volume_checks.check_mounts(f"{path}.volumeMounts", container.volume_mounts, known_volumes, privileged)
    yield from _resources(f"{path}.resources", container.resources)


def _ports(path: str, ports: tuple[ContainerPort, ...]) -> Iterator[FieldError]:
    for number, port in enumerate(ports):
        for field, value, least in (("containerPort", port.container_port, 1), ("hostPort", port.host_port, 0)):
            if not least <= value <= 65535:
                yield FieldError(f"{path}[{number}].{field}", quoted(value), "a port is 1 to 65535")
        yield from _choices((f"{path}[{number}].protocol", port.protocol, PROTOCOLS))
    yield from _duplicates(path + "[{}].name", [port.name for port in ports])


def _resources(path: str, resources: ResourceRequirements) -> Iterator[FieldError]:
    good = set()
    for kind, wishes in (("limits", resources.limits), ("requests", resources.requests)):
        for name, text in wishes.items():
            try:
                if quantity.parse(text) < 0:
                    yield FieldError(f"{path}.{kind}[{name}]", quoted(text), "0 or more is accepted")
                good.add((kind, name))
            except quantity.BadQuantity as error:
                yield FieldError(f"{path}.{kind}[{name}]", quoted(text), str(error))
    for name, text in resources.requests.items():
        if {("requests", name), ("limits", name)} <= good:
            limit = resources.limits[name]
            if quantity.parse(text) > quantity.parse(limit):
                yield FieldError(
                    f"{path}.requests[{name}]", quoted(text), f"no more than the limit {limit} is accepted"
                )


def _unmet(path: str, held: dict[str, object], refused: Iterable[str]) -> Iterator[FieldError]:
    for field in refused:
        if held[field]:
            yield FieldError(f"{path}.{_wire(field)}", "given", "is not supported by this version", FORBIDDEN)


def warnings(pod: Pod) -> Iterator[str]:
    """Fields that are kept but that this version does not act on."""
    places: list[tuple[str, dict[str, object], tuple[str, ...]]] = [("spec", asdict(pod.spec), IDLE_IN_SPEC)]
    for path, container in _places(pod.spec):
        places.append((path, asdict(container), IDLE_IN_CONTAINER))
    for path, held, idle in places:
        for field in idle:
            if held[field]:
                yield f"{path}.{_wire(field)}: kept, but this version does not act on it"


def immutable(old: Pod, new: Pod) -> Iterator[FieldError]:
    """A pod's spec stays as it is but for images, a nearer deadline, tolerations and a shorter grace period."""
    before, after = old.spec.active_deadline_seconds, new.spec.active_deadline_seconds
    if before is not None and (after is None or after > before):
        yield FieldError("spec.activeDeadlineSeconds", quoted(after), f"{before} or less is accepted", FORBIDDEN)
    added = [gate.name for gate in new.spec.scheduling_gates if gate not in old.spec.scheduling_gates]
    if added:
        why = "only deletion is allowed, but found new scheduling gate"
        yield FieldError("spec.schedulingGates", quoted(added), why, FORBIDDEN)
    if _frozen_part(old.spec) != _frozen_part(new.spec):
        yield FieldError(
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
