"""The order in which SCCs are tried: by priority, then the most restrictive first, then by name. Pure.

Source: the points by which OpenShift compares SCCs.
"""

from __future__ import annotations

from collections.abc import Iterable

from master.resources.security_context_constraints import (
    ANY,
    HOST_PATH,
    MUST_RUN_AS,
    MUST_RUN_AS_NON_ROOT,
    MUST_RUN_AS_RANGE,
    RUN_AS_ANY,
    SecurityContextConstraints,
)

_PRIVILEGED, _HOST_PORTS, _HOST_NETWORK = 1_600_000, 800_000, 400_000
_HOST_VOLUMES, _OTHER_VOLUMES = 200_000, 100_000
_STRATEGY = {RUN_AS_ANY: 40_000, MUST_RUN_AS_NON_ROOT: 30_000, MUST_RUN_AS_RANGE: 20_000, MUST_RUN_AS: 10_000}
_CAPABILITIES, _MAX_CAPABILITIES = 5_000, 9_999
_DEFAULT_ADD, _ALLOW_ALL, _ALLOW_ONE, _DROP_ALL, _DROP_ONE = 300, 4_000, 10, 3_000, 50

_TRIVIAL_VOLUMES = frozenset(("secret", "configMap", "emptyDir", "downwardAPI", "projected", "none"))


def sort_sccs(sccs: Iterable[SecurityContextConstraints]) -> list[SecurityContextConstraints]:
    """Return the SCCs in the order in which they are tried."""
    return sorted(sccs, key=lambda scc: (-(scc.priority or 0), permissiveness(scc), scc.metadata.name))


def permissiveness(scc: SecurityContextConstraints) -> int:
    """Return the points of an SCC: the fewer, the more restrictive it is."""
    points = _PRIVILEGED if scc.allow_privileged_container else 0
    points += _HOST_PORTS if scc.allow_host_ports else 0
    points += _HOST_NETWORK if scc.allow_host_network else 0
    volumes = set(scc.volumes or ())
    if volumes & {ANY, HOST_PATH}:
        points += _HOST_VOLUMES
    elif volumes - _TRIVIAL_VOLUMES:
        points += _OTHER_VOLUMES
    points += _STRATEGY.get(scc.run_as_user.type, 0) + _STRATEGY.get(scc.se_linux_context.type, 0)
    return points + _capability_points(scc)


def _capability_points(scc: SecurityContextConstraints) -> int:
    allowed, drops = scc.allowed_capabilities or (), scc.required_drop_capabilities or ()
    points = _CAPABILITIES + _DEFAULT_ADD * len(scc.default_add_capabilities or ())
    points += _ALLOW_ALL if {ANY, "ALL"} & set(allowed) else _ALLOW_ONE * len(allowed)
    points -= _DROP_ALL if "ALL" in drops else _DROP_ONE * len(drops)
    return min(max(points, 0), _MAX_CAPABILITIES)
