"""Checks of a Pod: names, DNS, host ports, init containers, bandwidth. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from ipaddress import ip_address

from msgspec.structs import replace

from api.core.pod import (
    FINAL_PHASES,
    Container,
    ContainerPort,
    EphemeralContainer,
    Pod,
    PodDNSConfig,
    PodSpec,
    ResourceRequirements,
)
from api.core.resource_requests import (
    EGRESS_BANDWIDTH,
    INGRESS_BANDWIDTH,
    MAX_BANDWIDTH,
    MIN_BANDWIDTH,
    is_sidecar,
    qos_class,
)
from api.meta import names, quantity
from api.meta.schema import (
    DUPLICATE,
    FORBIDDEN,
    MISSING,
    NOT_SUPPORTED,
    FieldError,
    duplicate_values,
    quoted,
    struct_fields,
    unsupported_values,
)
from api.network.addresses import unreachable_reason
from api.validation.containers import check_container_security, check_env, check_pod_security, check_probes
from api.validation.defaults import DEFAULT_GRACE_SECONDS
from api.validation.placement import check_placement, check_spread_constraints
from api.validation.static_pods import is_mirror
from api.validation.volumes import check_mounts, check_volumes

RESTART_POLICIES = ("Always", "OnFailure", "Never")
PULL_POLICIES = ("Always", "IfNotPresent", "Never")
PROTOCOLS = ("TCP", "UDP", "SCTP")
RESIZABLE_RESOURCES = ("cpu", "memory")
RESIZE_RESTART_POLICIES = ("NotRequired", "RestartContainer")
DNS_POLICIES = ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None")
TERMINATION_MESSAGE_POLICIES = ("File", "FallbackToLogsOnError")
MAX_SECONDS = 2**31 - 1

MAX_HOSTNAME_LENGTH = 64
"""Longest host name that the kernel accepts."""

MAX_NAMESERVERS = 3
MAX_SEARCH_DOMAINS = 32
MAX_SEARCH_LENGTH = 2048
"""Limits of a pod's resolv.conf. The length is that of all search domains together."""

UNSUPPORTED_POD_FIELDS = ("resource_claims",)
UNSUPPORTED_CONTAINER_FIELDS = ("volume_devices",)
"""Fields without which a pod would not run as intended, so the pod is rejected."""

IGNORED_POD_FIELDS = ("resources",)
"""Fields that are stored and have no effect."""

LONG_RUNNING_FIELDS = ("lifecycle", "liveness_probe", "readiness_probe", "startup_probe")
"""Fields that init containers must not have."""

EPHEMERAL_EXCLUDED_FIELDS = (*LONG_RUNNING_FIELDS, "ports")
"""Fields that ephemeral containers must not have."""


def check_pod(pod: Pod) -> Iterator[FieldError]:
    """Yield the errors of a Pod."""
    spec = pod.spec
    yield from _check_status_addresses(pod)
    yield from check_bandwidth(pod.metadata.annotations)
    yield from unsupported_values(
        ("spec.restartPolicy", spec.restart_policy, RESTART_POLICIES),
        ("spec.dnsPolicy", spec.dns_policy, DNS_POLICIES),
    )
    yield from _check_unsupported_fields("spec", spec, UNSUPPORTED_POD_FIELDS)
    yield from _check_pod_network(spec)
    for index, secret in enumerate(spec.image_pull_secrets):
        if error := names.dns_subdomain_error(secret.name):
            yield FieldError(f"spec.imagePullSecrets[{index}].name", quoted(secret.name), error)
    for path, seconds, minimum in (
        ("spec.terminationGracePeriodSeconds", spec.termination_grace_period_seconds, 0),
        ("spec.activeDeadlineSeconds", spec.active_deadline_seconds, 1),
    ):
        if seconds is not None and not minimum <= seconds <= MAX_SECONDS:
            yield FieldError(path, quoted(seconds), f"{minimum} to {MAX_SECONDS} seconds are accepted")
    yield from check_placement(spec)
    yield from _check_scheduling_gates(spec)
    yield from check_spread_constraints("spec.topologySpreadConstraints", spec.topology_spread_constraints)
    if spec.node_name and (error := names.dns_subdomain_error(spec.node_name)):
        yield FieldError("spec.nodeName", quoted(spec.node_name), error)
    yield from _check_hostnames(spec)
    yield from check_pod_security("spec.securityContext", spec.security_context)
    if spec.host_users is False:
        accepted = "true is accepted: Docker enables user namespaces for all containers or for none"
        yield FieldError("spec.hostUsers", "false", accepted, FORBIDDEN)
    yield from check_volumes(spec.volumes)
    for index, gate in enumerate(spec.readiness_gates):
        if error := names.label_key_error(gate.condition_type):
            yield FieldError(f"spec.readinessGates[{index}].conditionType", quoted(gate.condition_type), error)
    yield from _check_containers(spec)


def _check_hostnames(spec: PodSpec) -> Iterator[FieldError]:
    if spec.hostname and (error := names.dns_label_error(spec.hostname)):
        yield FieldError("spec.hostname", quoted(spec.hostname), error)
    path, hostname = "spec.hostnameOverride", spec.hostname_override
    if hostname is None:
        return
    if spec.host_network:
        yield FieldError(path, quoted(hostname), "may not be specified when hostNetwork is true", FORBIDDEN)
    if spec.set_hostname_as_fqdn:
        yield FieldError(path, quoted(hostname), "may not be specified when setHostnameAsFQDN is true", FORBIDDEN)
    if len(hostname) > MAX_HOSTNAME_LENGTH:
        yield FieldError(path, quoted(hostname), f"must be no more than {MAX_HOSTNAME_LENGTH} characters")
    elif error := names.dns_subdomain_error(hostname):
        yield FieldError(path, quoted(hostname), error)


def check_bandwidth(annotations: Mapping[str, str]) -> Iterator[FieldError]:
    """Yield the errors of the bandwidth annotations."""
    for key in (INGRESS_BANDWIDTH, EGRESS_BANDWIDTH):
        text = annotations.get(key)
        if text is None:
            continue
        path = f"metadata.annotations[{key}]"
        try:
            if not MIN_BANDWIDTH <= quantity.parse(text) <= MAX_BANDWIDTH:
                yield FieldError(path, quoted(text), "1k to 1P bits a second are accepted")
        except quantity.BadQuantity as error:
            yield FieldError(path, quoted(text), str(error))


def _check_status_addresses(pod: Pod) -> Iterator[FieldError]:
    """Check the addresses that the node reports, because clients of the pod connect to them."""
    addresses = [("status.podIP", pod.status.pod_ip)]
    addresses += [(f"status.podIPs[{index}].ip", pod_ip.ip) for index, pod_ip in enumerate(pod.status.pod_ips)]
    for path, address in addresses:
        if address and (reason := unreachable_reason(address)):
            yield FieldError(path, quoted(address), reason)


def _check_scheduling_gates(spec: PodSpec) -> Iterator[FieldError]:
    for index, gate in enumerate(spec.scheduling_gates):
        if error := names.label_key_error(gate.name):
            yield FieldError(f"spec.schedulingGates[{index}].name", quoted(gate.name), error)
    yield from duplicate_values("spec.schedulingGates[{}].name", [gate.name for gate in spec.scheduling_gates])
    if spec.node_name and spec.scheduling_gates:
        reason = "cannot be set until all schedulingGates have been cleared"
        yield FieldError("spec.nodeName", quoted(spec.node_name), reason, FORBIDDEN)


def _check_unsupported_fields(path: str, holder: PodSpec | Container, fields: tuple[str, ...]) -> Iterator[FieldError]:
    for field in fields:
        if getattr(holder, field):
            yield FieldError(
                f"{path}.{_json_name(holder, field)}", "given", "is not supported by this version", FORBIDDEN
            )


def _json_name(holder: PodSpec | Container, field: str) -> str:
    return next(struct_field.encode_name for struct_field in struct_fields(type(holder)) if struct_field.name == field)


# --- network ----------------------------------------------------------------------------------------------------------


def _check_pod_network(spec: PodSpec) -> Iterator[FieldError]:
    if spec.subdomain and (error := names.dns_label_error(spec.subdomain)):
        yield FieldError("spec.subdomain", quoted(spec.subdomain), error)
    if spec.host_pid and spec.share_process_namespace:
        yield FieldError("spec.shareProcessNamespace", "true", "only false is accepted with hostPID", FORBIDDEN)
    for alias_index, alias in enumerate(spec.host_aliases):
        path = f"spec.hostAliases[{alias_index}]"
        yield from _check_ip_address(f"{path}.ip", alias.ip)
        for index, hostname in enumerate(alias.hostnames):
            if error := names.dns_subdomain_error(hostname):
                yield FieldError(f"{path}.hostnames[{index}]", quoted(hostname), error)
    yield from _check_dns_config(spec)
    yield from _check_host_ports(spec)


def _check_dns_config(spec: PodSpec) -> Iterator[FieldError]:
    path = "spec.dnsConfig"
    config = spec.dns_config or PodDNSConfig()
    if spec.dns_policy == "None" and not config.nameservers:
        yield FieldError(f"{path}.nameservers", "[]", "at least one is required with dnsPolicy None", MISSING)
    if len(config.nameservers) > MAX_NAMESERVERS:
        bad_value = str(len(config.nameservers))
        yield FieldError(f"{path}.nameservers", bad_value, f"at most {MAX_NAMESERVERS} are accepted")
    for index, nameserver in enumerate(config.nameservers):
        yield from _check_ip_address(f"{path}.nameservers[{index}]", nameserver)
    search_length = len(" ".join(config.searches))
    if len(config.searches) > MAX_SEARCH_DOMAINS or search_length > MAX_SEARCH_LENGTH:
        bad_value = f"{len(config.searches)} of {search_length} characters"
        accepted = f"at most {MAX_SEARCH_DOMAINS} of together {MAX_SEARCH_LENGTH} characters are accepted"
        yield FieldError(f"{path}.searches", bad_value, accepted)
    for index, domain in enumerate(config.searches):
        if domain != "." and (error := names.search_domain_error(domain.removesuffix("."))):
            yield FieldError(f"{path}.searches[{index}]", quoted(domain), error)
    for index, option in enumerate(config.options):
        if not option.name:
            yield FieldError(f"{path}.options[{index}].name", '""', "a name is required", MISSING)


def _check_host_ports(spec: PodSpec) -> Iterator[FieldError]:
    used: set[tuple[int, str, str]] = set()
    for field, containers in (("containers", spec.containers), ("initContainers", spec.init_containers)):
        for container_index, container in enumerate(containers):
            for index, port in enumerate(container.ports):
                path = f"spec.{field}[{container_index}].ports[{index}]"
                yield from _check_host_port(path, port, spec.host_network)
                key = (port.host_port, port.protocol or "TCP", port.host_ip)
                if port.host_port and key in used:
                    yield FieldError(f"{path}.hostPort", quoted(port.host_port), "must be unique", DUPLICATE)
                used.add(key)


def _check_host_port(path: str, port: ContainerPort, host_network: bool) -> Iterator[FieldError]:
    if port.host_ip:
        yield from _check_ip_address(f"{path}.hostIP", port.host_ip)
    if host_network and port.host_port not in {0, port.container_port}:
        accepted = f"must equal containerPort, {port.container_port}, with hostNetwork"
        yield FieldError(f"{path}.hostPort", quoted(port.host_port), accepted)


def _check_ip_address(path: str, text: str) -> Iterator[FieldError]:
    try:
        ip_address(text)
    except ValueError:
        yield FieldError(path, quoted(text), "an IP address is accepted")


# --- containers -------------------------------------------------------------------------------------------------------


def _check_containers(spec: PodSpec) -> Iterator[FieldError]:
    if not spec.containers:
        yield FieldError("spec.containers", "[]", "at least one container is required", MISSING)
    yield from _check_container_types(spec)
    volume_names = {volume.name for volume in spec.volumes}
    grace = spec.termination_grace_period_seconds
    if grace is None:
        grace = DEFAULT_GRACE_SECONDS
    for path, container in _containers_by_path(spec):
        yield from _check_container(path, container, volume_names)
        yield from check_probes(path, container, grace, spec.host_network)


def _containers_by_path(spec: PodSpec) -> Iterator[tuple[str, Container]]:
    for field, containers in (
        ("containers", spec.containers),
        ("initContainers", spec.init_containers),
        ("ephemeralContainers", spec.ephemeral_containers),
    ):
        for index, container in enumerate(containers):
            yield f"spec.{field}[{index}]", container


def _check_container_types(spec: PodSpec) -> Iterator[FieldError]:
    """Yield the errors that depend on the type of a container: regular, init, sidecar or ephemeral."""
    seen: set[str] = set()
    for path, container in _containers_by_path(spec):
        if container.name and container.name in seen:
            yield FieldError(f"{path}.name", quoted(container.name), "must be unique", DUPLICATE)
        seen.add(container.name)
    for index, container in enumerate(spec.init_containers):
        yield from _check_init_container(f"spec.initContainers[{index}]", container)
    for index, container in enumerate(spec.containers):
        if container.restart_policy is not None:
            path = f"spec.containers[{index}].restartPolicy"
            reason = "only init containers have a restartPolicy of their own"
            yield FieldError(path, quoted(container.restart_policy), reason, FORBIDDEN)
    target_names = {container.name for container in (*spec.init_containers, *spec.containers)}
    for index, ephemeral in enumerate(spec.ephemeral_containers):
        yield from _check_ephemeral_container(f"spec.ephemeralContainers[{index}]", ephemeral, target_names)


def _check_init_container(path: str, container: Container) -> Iterator[FieldError]:
    if container.restart_policy not in {None, "Always"}:
        yield FieldError(f"{path}.restartPolicy", quoted(container.restart_policy), "Always is accepted", NOT_SUPPORTED)
    if not is_sidecar(container):
        reason = "is accepted only with restartPolicy Always: an init container ends before others start"
        yield from _check_excluded_fields(path, container, LONG_RUNNING_FIELDS, reason)


def _check_ephemeral_container(
    path: str, container: EphemeralContainer, target_names: set[str]
) -> Iterator[FieldError]:
    reason = "is not accepted for an ephemeral container"
    yield from _check_excluded_fields(path, container, EPHEMERAL_EXCLUDED_FIELDS, reason)
    if container.resources.limits or container.resources.requests:
        yield FieldError(f"{path}.resources", "given", reason, FORBIDDEN)
    if container.restart_policy is not None:
        yield FieldError(f"{path}.restartPolicy", quoted(container.restart_policy), "it is never restarted", FORBIDDEN)
    if container.target_container_name and container.target_container_name not in target_names:
        accepted = f"a container of this pod is accepted: {', '.join(sorted(target_names))}"
        yield FieldError(f"{path}.targetContainerName", quoted(container.target_container_name), accepted)


def _check_excluded_fields(
    path: str, container: Container, excluded: tuple[str, ...], reason: str
) -> Iterator[FieldError]:
    for field in excluded:
        if getattr(container, field):
            yield FieldError(f"{path}.{_json_name(container, field)}", "given", reason, FORBIDDEN)


def _check_container(path: str, container: Container, volume_names: set[str]) -> Iterator[FieldError]:
    if not container.name:
        yield FieldError(f"{path}.name", '""', "a name is required", MISSING)
    elif error := names.dns_label_error(container.name):
        yield FieldError(f"{path}.name", quoted(container.name), error)
    if not container.image.strip():
        accepted = 'an image is required, for example "nginx:1.27"'
        yield FieldError(f"{path}.image", quoted(container.image), accepted, MISSING)
    yield from unsupported_values(
        (f"{path}.imagePullPolicy", container.image_pull_policy, PULL_POLICIES),
        (f"{path}.terminationMessagePolicy", container.termination_message_policy, TERMINATION_MESSAGE_POLICIES),
    )
    yield from _check_unsupported_fields(path, container, UNSUPPORTED_CONTAINER_FIELDS)
    yield from check_container_security(f"{path}.securityContext", container.security_context)
    if container.working_dir and not container.working_dir.startswith("/"):
        yield FieldError(f"{path}.workingDir", quoted(container.working_dir), "an absolute path is accepted")
    yield from check_env(path, container)
    yield from _check_ports(f"{path}.ports", container.ports)
    privileged = bool(container.security_context and container.security_context.privileged)
    yield from check_mounts(f"{path}.volumeMounts", container.volume_mounts, volume_names, privileged)
    yield from _check_resources(f"{path}.resources", container.resources)
    for index, policy in enumerate(container.resize_policy):
        yield from unsupported_values(
            (f"{path}.resizePolicy[{index}].resourceName", policy.resource_name, RESIZABLE_RESOURCES),
            (f"{path}.resizePolicy[{index}].restartPolicy", policy.restart_policy, RESIZE_RESTART_POLICIES),
        )
    resized = [policy.resource_name for policy in container.resize_policy]
    yield from duplicate_values(path + ".resizePolicy[{}].resourceName", resized)


def _check_ports(path: str, ports: tuple[ContainerPort, ...]) -> Iterator[FieldError]:
    for index, port in enumerate(ports):
        for field, number, minimum in (("containerPort", port.container_port, 1), ("hostPort", port.host_port, 0)):
            if not minimum <= number <= 65535:
                yield FieldError(f"{path}[{index}].{field}", quoted(number), "a port is 1 to 65535")
        yield from unsupported_values((f"{path}[{index}].protocol", port.protocol, PROTOCOLS))
    yield from duplicate_values(path + "[{}].name", [port.name for port in ports])


def _check_resources(path: str, resources: ResourceRequirements) -> Iterator[FieldError]:
    parsed = set()
    for field, amounts in (("limits", resources.limits), ("requests", resources.requests)):
        for name, amount in amounts.items():
            try:
                if quantity.parse(amount) < 0:
                    yield FieldError(f"{path}.{field}[{name}]", quoted(amount), "0 or more is accepted")
                parsed.add((field, name))
            except quantity.BadQuantity as error:
                yield FieldError(f"{path}.{field}[{name}]", quoted(amount), str(error))
    for name, request in resources.requests.items():
        if {("requests", name), ("limits", name)} <= parsed:
            limit = resources.limits[name]
            if quantity.parse(request) > quantity.parse(limit):
                accepted = f"no more than the limit {limit} is accepted"
                yield FieldError(f"{path}.requests[{name}]", quoted(request), accepted)


# --- warnings and updates ---------------------------------------------------------------------------------------------


def pod_warnings(pod: Pod) -> Iterator[str]:
    """Yield a warning for each field that is stored and has no effect."""
    for field in IGNORED_POD_FIELDS:
        if getattr(pod.spec, field):
            yield f"spec.{_json_name(pod.spec, field)}: kept, but this version does not act on it"


def check_pod_update(old: Pod, new: Pod) -> Iterator[FieldError]:
    """Yield the changes of a pod that an update must not make.

    Images, a shorter deadline, tolerations, a shorter grace period and the removal of scheduling gates are accepted.
    """
    old_deadline = old.spec.active_deadline_seconds
    new_deadline = new.spec.active_deadline_seconds
    if old_deadline is not None and (new_deadline is None or new_deadline > old_deadline):
        accepted = f"{old_deadline} or less is accepted"
        yield FieldError("spec.activeDeadlineSeconds", quoted(new_deadline), accepted, FORBIDDEN)
    old_gates = {gate.name for gate in old.spec.scheduling_gates}
    added_gates = [gate.name for gate in new.spec.scheduling_gates if gate.name not in old_gates]
    if added_gates:
        reason = "only deletion is allowed, but found new scheduling gate"
        yield FieldError("spec.schedulingGates", quoted(added_gates), reason, FORBIDDEN)
    if _immutable_part(old.spec) != _immutable_part(new.spec):
        yield FieldError(
            "spec",
            "changed",
            "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
            "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
            "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
            FORBIDDEN,
        )


def _immutable_part(spec: PodSpec) -> PodSpec:
    return replace(
        spec,
        init_containers=tuple(replace(container, image="") for container in spec.init_containers),
        containers=tuple(replace(container, image="") for container in spec.containers),
        active_deadline_seconds=None,
        tolerations=(),
        scheduling_gates=(),
        termination_grace_period_seconds=None,
    )


def add_ephemeral_containers(old: Pod, new: Pod) -> tuple[Pod, tuple[FieldError, ...]]:
    """Return the old pod with the ephemeral containers of the new one, and errors if existing ones were changed."""
    requested = {container.name: container for container in new.spec.ephemeral_containers}
    errors = tuple(
        FieldError(
            f"spec.ephemeralContainers[{index}]",
            "changed" if container.name in requested else "removed",
            "existing ephemeral containers may not be changed or removed",
            FORBIDDEN,
        )
        for index, container in enumerate(old.spec.ephemeral_containers)
        if requested.get(container.name) != container
    )
    spec = replace(old.spec, ephemeral_containers=new.spec.ephemeral_containers)
    return replace(old, spec=spec), errors


def resize_pod(old: Pod, new: Pod) -> tuple[Pod, tuple[FieldError, ...]]:
    """Return the old pod with the resources of the new one, and the errors of that change.

    CPU and memory of regular containers and sidecars may change. Requests and limits may not be removed, and the pod
    keeps its quality of service class, because that decides about its cgroup.
    """
    spec = replace(
        old.spec,
        containers=_with_resized(old.spec.containers, new.spec.containers),
        init_containers=_with_resized(old.spec.init_containers, new.spec.init_containers, is_sidecar),
    )
    resized = replace(old, spec=spec)
    errors = list(_resize_errors(old, new, resized))
    return resized, tuple(errors)


def _with_resized(
    old: tuple[Container, ...],
    new: tuple[Container, ...],
    may_change: Callable[[Container], bool] = lambda _: True,
) -> tuple[Container, ...]:
    by_name = {container.name: container for container in new}
    return tuple(
        replace(container, resources=by_name[container.name].resources)
        if container.name in by_name and may_change(container)
        else container
        for container in old
    )


def _resize_errors(old: Pod, new: Pod, resized: Pod) -> Iterator[FieldError]:
    if is_mirror(old):
        yield FieldError("metadata.annotations", "those of a mirror pod", "static pods cannot be resized", FORBIDDEN)
    if old.status.phase in FINAL_PHASES:
        yield FieldError("status.phase", quoted(old.status.phase), "a pod that has ended cannot be resized", FORBIDDEN)
    if new.spec != resized.spec:
        yield FieldError("spec", "changed", "only cpu and memory resources are mutable", FORBIDDEN)
    for (path, before), (_, after) in zip(
        _containers_by_path(old.spec), _containers_by_path(resized.spec), strict=True
    ):
        for field, old_amounts, new_amounts in (
            ("requests", before.resources.requests, after.resources.requests),
            ("limits", before.resources.limits, after.resources.limits),
        ):
            for name in old_amounts.keys() | new_amounts.keys():
                where = f"{path}.resources.{field}[{name}]"
                if name not in RESIZABLE_RESOURCES and old_amounts.get(name) != new_amounts.get(name):
                    yield FieldError(where, "changed", "only cpu and memory resources are mutable", FORBIDDEN)
                elif name not in new_amounts:
                    yield FieldError(where, "removed", f"resource {field} cannot be removed", FORBIDDEN)
    containers = (*resized.spec.init_containers, *resized.spec.containers)
    if not any(map(_has_bad_quantity, containers)) and (qos := qos_class(containers)) != old.status.qos_class:
        yield FieldError("metadata", quoted(qos), "Pod QOS Class may not change as a result of resizing")


def _has_bad_quantity(container: Container) -> bool:
    return any(_check_resources("", container.resources))
