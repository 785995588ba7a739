"""The architecture, executed: who may import whom, what is pure, how long things may be."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("api", "cli", "lab", "master", "nameserver", "node_agent", "reconcile", "sdn", "streams")
MAY_IMPORT = {
    "api": set(),
    "reconcile": set(),
    "streams": set(),
    "master": {"api", "nameserver", "reconcile", "streams"},
    "nameserver": {"api", "reconcile"},
    "node_agent": {"api", "reconcile", "streams"},
    "sdn": {"api", "nameserver", "reconcile"},
    "cli": {"api", "lab"},
    "lab": {"api"},
}
ACTING = {"asyncio", "logging", "os", "random", "select", "socket", "subprocess", "threading", "time", "uuid"}
PURE = (
    "api/addresses.py",
    "api/beside.py",
    "api/configuration.py",
    "api/capacity.py",
    "api/decoding.py",
    "api/defaults.py",
    "api/endpoints.py",
    "api/events.py",
    "api/documents.py",
    "api/fields.py",
    "api/init_containers.py",
    "api/resources.py",
    "api/reviews.py",
    "api/bandwidth.py",
    "api/kinds.py",
    "api/lanes.py",
    "api/label_selector.py",
    "api/leases.py",
    "api/manifest.py",
    "api/names.py",
    "api/networks.py",
    "api/objects.py",
    "api/pem.py",
    "api/pod_addresses.py",
    "api/pod_network.py",
    "api/placement.py",
    "api/pod_affinity.py",
    "api/pods.py",
    "api/ports.py",
    "api/probes.py",
    "api/quantity.py",
    "api/queries.py",
    "api/query_checks.py",
    "api/rules.py",
    "api/references.py",
    "api/resource_fields.py",
    "api/schema.py",
    "api/security.py",
    "api/services.py",
    "api/signing_requests.py",
    "api/selectors.py",
    "api/service_checks.py",
    "api/storage.py",
    "api/static_pods.py",
    "api/times.py",
    "api/tokens.py",
    "api/traces.py",
    "api/validate.py",
    "api/value.py",
    "api/variable_checks.py",
    "api/variables.py",
    "api/volume_checks.py",
    "api/volumes.py",
    "cli/called.py",
    "cli/disbelief.py",
    "cli/drops.py",
    "cli/packet.py",
    "cli/verdict.py",
    "cli/walk.py",
    "lab/topology.py",
    "master/beside/decisions.py",
    "master/wishes.py",
    "master/controllers/account_secrets.py",
    "master/access/accounts.py",
    "master/admission/allocators.py",
    "master/admission/external_addresses.py",
    "master/controllers/network/ingress_addresses.py",
    "master/controllers/network/endpoint_work.py",
    "master/kinds/amounts.py",
    "master/writing/apply.py",
    "master/access/authorize.py",
    "master/wire/ask.py",
    "master/wire/bodies.py",
    "master/wire/readable.py",
    "master/access/bootstrap_roles.py",
    "master/access/bootstrap_tokens.py",
    "master/access/serving.py",
    "master/access/signers.py",
    "master/admission/signing_requests.py",
    "master/controllers/certificates.py",
    "master/access/escalation.py",
    "master/access/impersonation.py",
    "master/access/node_restriction.py",
    "master/controllers/network/master_service.py",
    "master/admission/pod_accounts.py",
    "master/access/rbac.py",
    "master/controllers/roles.py",
    "master/controllers/claims.py",
    "master/controllers/protection.py",
    "master/writing/outcomes.py",
    "master/controllers/bootstrap.py",
    "master/controllers/forgetting.py",
    "master/controllers/nodes/silence.py",
    "master/kinds/conversions.py",
    "master/controllers/workloads/cron_jobs.py",
    "master/controllers/workloads/daemon_sets.py",
    "master/controllers/dependents.py",
    "master/controllers/workloads/deployments.py",
    "master/controllers/workloads/disruptions.py",
    "master/admission/evictions.py",
    "master/controllers/ending_namespaces.py",
    "master/controllers/network/endpoint_mirroring.py",
    "master/controllers/network/endpoints.py",
    "master/writing/field_sets.py",
    "master/kinds/default_tolerations.py",
    "master/controllers/scheduling/neighbours.py",
    "master/controllers/nodes/node_taints.py",
    "master/controllers/scheduling/placements.py",
    "master/controllers/scheduling/preemption.py",
    "master/controllers/nodes/taint_evictions.py",
    "master/controllers/happenings.py",
    "master/controllers/workloads/job_counts.py",
    "master/kinds/job_indexes.py",
    "master/controllers/workloads/jobs.py",
    "master/controllers/network/lanes.py",
    "master/admission/limit_ranges.py",
    "master/admission/ingress_classes.py",
    "master/wire/links.py",
    "master/wire/openapi.py",
    "master/wire/passing.py",
    "master/wire/pod_options.py",
    "master/wire/schemas.py",
    "master/controllers/workloads/own_pods.py",
    "master/controllers/nodes/pod_garbage.py",
    "master/admission/priorities.py",
    "master/admission/quotas.py",
    "master/controllers/refusals.py",
    "master/controllers/workloads/replicas.py",
    "master/access/reviews.py",
    "master/controllers/workloads/revisions.py",
    "master/controllers/workloads/rollout.py",
    "master/controllers/workloads/rollout_status.py",
    "master/writing/scaling.py",
    "master/controllers/scheduling/scheduler.py",
    "master/kinds/resource_metrics.py",
    "master/kinds/schedules.py",
    "master/kinds/shape.py",
    "master/admission/service_addresses.py",
    "master/controllers/workloads/stateful_sets.py",
    "master/controllers/network/subnets.py",
    "master/controllers/workloads/template_hash.py",
    "nameserver/directory.py",
    "nameserver/messages.py",
    "nameserver/names.py",
    "nameserver/zone.py",
    "node_agent/server/channel_messages.py",
    "node_agent/server/outcomes.py",
    "node_agent/certificates/rotation.py",
    "node_agent/claims.py",
    "node_agent/cgroups.py",
    "node_agent/cni.py",
    "node_agent/conditions.py",
    "node_agent/containers.py",
    "node_agent/credentials.py",
    "node_agent/admission.py",
    "node_agent/deadline.py",
    "node_agent/docker_frames.py",
    "node_agent/docker_log_entries.py",
    "node_agent/environment.py",
    "node_agent/events.py",
    "node_agent/host_ports.py",
    "node_agent/naming.py",
    "node_agent/eviction.py",
    "node_agent/garbage.py",
    "node_agent/log_links.py",
    "node_agent/log_wish.py",
    "node_agent/mirror_pods.py",
    "node_agent/lost.py",
    "node_agent/node.py",
    "node_agent/observed.py",
    "node_agent/payload.py",
    "node_agent/plan.py",
    "node_agent/resolver.py",
    "node_agent/security.py",
    "node_agent/service_variables.py",
    "node_agent/slices.py",
    "node_agent/reserved.py",
    "node_agent/stages.py",
    "node_agent/probing.py",
    "node_agent/thresholds.py",
    "node_agent/pull_limits.py",
    "node_agent/container_rows.py",
    "node_agent/pod_network.py",
    "node_agent/server/access.py",
    "node_agent/server/log_source.py",
    "node_agent/server/pod_lists.py",
    "node_agent/sources/merge.py",
    "node_agent/sources/reading.py",
    "node_agent/progress.py",
    "node_agent/stats/cadvisor.py",
    "node_agent/stats/exposition.py",
    "node_agent/stats/figures.py",
    "node_agent/stats/kubelet.py",
    "node_agent/stats/machine.py",
    "node_agent/stats/probes.py",
    "node_agent/stats/resource.py",
    "node_agent/stats/summary.py",
    "node_agent/stats/uses.py",
    "node_agent/status.py",
    "node_agent/stopping.py",
    "node_agent/volume_paths.py",
    "reconcile/changes.py",
    "sdn/askers.py",
    "sdn/believed.py",
    "sdn/flow.py",
    "sdn/flows.py",
    "sdn/ipam.py",
    "sdn/drops.py",
    "sdn/handouts.py",
    "sdn/links.py",
    "sdn/match.py",
    "sdn/nat.py",
    "sdn/objections.py",
    "sdn/observed.py",
    "sdn/pipeline.py",
    "sdn/plan.py",
    "sdn/recollection.py",
    "sdn/services/calls.py",
    "sdn/services/catalogue.py",
    "sdn/services/connections.py",
    "sdn/services/maps.py",
    "sdn/services/report.py",
    "sdn/services/rows.py",
    "sdn/services/served_port.py",
    "sdn/services/directory.py",
    "sdn/services/userspace/rotation.py",
    "sdn/services/serving.py",
    "sdn/services/tracing.py",
    "sdn/trace.py",
    "sdn/view.py",
    "streams/spdy/dictionary.py",
    "streams/spdy/frames.py",
    "streams/spdy/headers.py",
)
LONGEST_FILE, LONGEST_FUNCTION = 400, 50
LONG_BY_NATURE = {"api/objects.py"}
VAGUE = ("manager", "helper", "util")


def sources() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.fixture(params=sources(), ids=named)
def source(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_a_package_imports_only_what_it_may(source: Path) -> None:
    package = named(source).split("/")[0]
    ours = {name.split(".")[0] for name in imports(ast.parse(source.read_text()))} & set(PACKAGES)
    assert ours <= MAY_IMPORT[package] | {package}


@pytest.mark.parametrize("name", PURE)
def test_what_decides_does_not_act(name: str) -> None:
    found = set(imports(ast.parse((ROOT / name).read_text())))
    assert not {module.split(".")[0] for module in found} & ACTING
    assert not {module for module in found if ".drivers" in module}


def test_files_and_functions_are_short_and_say_what_they_are(source: Path) -> None:
    text = source.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "a module says what it is"
    assert len(text.splitlines()) <= LONGEST_FILE or named(source) in LONG_BY_NATURE
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < LONGEST_FUNCTION, node.name


def test_no_except_swallows_everything(source: Path) -> None:
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.ExceptHandler):
            caught = ast.unparse(node.type) if node.type else ""
            broad = caught in {"", "Exception", "BaseException"}
            told = any(isinstance(inner, ast.Raise) or ".exception(" in ast.unparse(inner) for inner in node.body)
            assert not broad or told, f"line {node.lineno}"


def test_names_are_the_fields_own(source: Path) -> None:
    assert not any(word in source.stem for word in VAGUE)
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            assert not any(word in node.name.lower() for word in VAGUE), node.name
