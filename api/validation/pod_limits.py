"""The numbers of items that a pod may have. They bound the work of defaults, admission, validation and scheduler. Pure.

They are checked right after decoding. Kubernetes limits only the size of an object, which its storage keeps below
1.5 MiB.
"""

from __future__ import annotations

from collections.abc import Iterator

from api.core.placement import Affinity, NodeAffinity, PodAffinity, PodAntiAffinity
from api.core.pod import PodSecurityContext, PodSpec
from api.meta.schema import TOO_MANY, FieldError
from api.validation.placement import PREFERRED, REQUIRED

MAX_CONTAINERS = 200
"""Containers of all types. Each is checked with several SCCs, which takes 0.4 ms."""

MAX_AFFINITY_TERMS, MAX_EXPRESSIONS = 100, 1000
"""Terms of each list of the affinity, and expressions of all terms for nodes: the scheduler compares them with every
pod or node.
"""


def check_numbers(path: str, spec: PodSpec) -> Iterator[FieldError]:
    """Yield an error for each number that is too large. `path` is that of the pod's spec."""
    for name, number, limit in (*_container_numbers(spec), *_pod_numbers(spec), *_affinity_numbers(spec.affinity)):
        if number > limit:
            yield FieldError(f"{path}.{name}", str(number), f"must have at most {limit} items", TOO_MANY)


def _container_numbers(spec: PodSpec) -> Iterator[tuple[str, int, int]]:
    """Yield field, number and limit of what the containers have together."""
    containers = (*spec.containers, *spec.init_containers, *spec.ephemeral_containers)
    contexts = [container.security_context for container in containers if container.security_context is not None]
    capabilities = [context.capabilities for context in contexts if context.capabilities is not None]
    yield "containers", len(containers), MAX_CONTAINERS
    each = "containers[*]"
    yield f"{each}.command", sum(len(container.command) for container in containers), 10_000
    yield f"{each}.args", sum(len(container.args) for container in containers), 10_000
    yield f"{each}.env", sum(len(container.env) for container in containers), 10_000
    yield f"{each}.envFrom", sum(len(container.env_from) for container in containers), 1000
    yield f"{each}.ports", sum(len(container.ports) for container in containers), 5000
    yield f"{each}.volumeMounts", sum(len(container.volume_mounts) for container in containers), 5000
    yield f"{each}.resources.limits", sum(len(container.resources.limits) for container in containers), 2000
    yield f"{each}.resources.requests", sum(len(container.resources.requests) for container in containers), 2000
    path = f"{each}.securityContext.capabilities"
    yield f"{path}.add", sum(len(changes.add) for changes in capabilities), 2000
    yield f"{path}.drop", sum(len(changes.drop) for changes in capabilities), 2000


def _pod_numbers(spec: PodSpec) -> Iterator[tuple[str, int, int]]:
    context = spec.security_context or PodSecurityContext()
    yield "volumes", len(spec.volumes), 1000
    yield "nodeSelector", len(spec.node_selector), 100
    yield "imagePullSecrets", len(spec.image_pull_secrets), 100
    yield "tolerations", len(spec.tolerations), 500
    yield "hostAliases", len(spec.host_aliases), 1000
    yield "readinessGates", len(spec.readiness_gates), 100
    yield "schedulingGates", len(spec.scheduling_gates), 100
    yield "topologySpreadConstraints", len(spec.topology_spread_constraints), 50
    yield "securityContext.supplementalGroups", len(context.supplemental_groups), 1000
    yield "securityContext.sysctls", len(context.sysctls), 100


def _affinity_numbers(affinity: Affinity | None) -> Iterator[tuple[str, int, int]]:
    affinity = affinity or Affinity()
    nodes = affinity.node_affinity or NodeAffinity()
    required = nodes.required_during_scheduling_ignored_during_execution
    preferred = nodes.preferred_during_scheduling_ignored_during_execution
    required_terms = required.node_selector_terms if required is not None else ()
    yield f"affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms", len(required_terms), MAX_AFFINITY_TERMS
    yield f"affinity.nodeAffinity.{PREFERRED}", len(preferred), MAX_AFFINITY_TERMS
    terms = (*required_terms, *(weighted.preference for weighted in preferred))
    expressions = sum(len(term.match_expressions) + len(term.match_fields) for term in terms)
    yield "affinity.nodeAffinity", expressions, MAX_EXPRESSIONS
    pods, others = affinity.pod_affinity or PodAffinity(), affinity.pod_anti_affinity or PodAntiAffinity()
    for name, terms_of in (("podAffinity", pods), ("podAntiAffinity", others)):
        must, should = (
            terms_of.required_during_scheduling_ignored_during_execution,
            terms_of.preferred_during_scheduling_ignored_during_execution,
        )
        yield f"affinity.{name}.{REQUIRED}", len(must), MAX_AFFINITY_TERMS
        yield f"affinity.{name}.{PREFERRED}", len(should), MAX_AFFINITY_TERMS
