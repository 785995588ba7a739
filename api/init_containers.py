"""What is wrong with the containers that run before or beside a pod's own: init, sidecar and ephemeral ones. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import asdict, replace

from api.objects import Container, EphemeralContainer, Pod, PodSpec
from api.resources import is_sidecar
from api.schema import DUPLICATE, FORBIDDEN, NOT_SUPPORTED, Problem, shown

OF_LASTING_CONTAINERS = ("lifecycle", "liveness_probe", "readiness_probe", "startup_probe")
NOT_FOR_EPHEMERAL = (*OF_LASTING_CONTAINERS, "ports")


def check(spec: PodSpec) -> Iterator[Problem]:
    """Every problem, by path, that other containers do not have as well."""
    yield from _names(spec)
    for number, container in enumerate(spec.init_containers):
        yield from _init(f"spec.initContainers[{number}]", container)
    for number, container in enumerate(spec.containers):
        if container.restart_policy is not None:
            wanted = "only init containers have a restartPolicy of their own"
            yield Problem(
                f"spec.containers[{number}].restartPolicy", shown(container.restart_policy), wanted, FORBIDDEN
            )
    known = {container.name for container in (*spec.init_containers, *spec.containers)}
    for number, extra in enumerate(spec.ephemeral_containers):
        yield from _ephemeral(f"spec.ephemeralContainers[{number}]", extra, known)


def _names(spec: PodSpec) -> Iterator[Problem]:
    """Names are unique in the whole pod."""
    seen: set[str] = set()
    for kind, rows in (
        ("containers", spec.containers),
        ("initContainers", spec.init_containers),
        ("ephemeralContainers", spec.ephemeral_containers),
    ):
        for number, name in enumerate(row.name for row in rows):
            if name and name in seen:
                yield Problem(f"spec.{kind}[{number}].name", shown(name), "must be unique", DUPLICATE)
            seen.add(name)


def _init(path: str, container: Container) -> Iterator[Problem]:
    if container.restart_policy not in {None, "Always"}:
        yield Problem(f"{path}.restartPolicy", shown(container.restart_policy), "Always is accepted", NOT_SUPPORTED)
    if not is_sidecar(container):
        why = "is accepted only with restartPolicy Always: an init container ends before others start"
        yield from _without(path, container, OF_LASTING_CONTAINERS, why)


def _ephemeral(path: str, container: EphemeralContainer, known: set[str]) -> Iterator[Problem]:
    yield from _without(path, container, NOT_FOR_EPHEMERAL, "is not accepted for an ephemeral container")
    if container.resources.limits or container.resources.requests:
        yield Problem(f"{path}.resources", "given", "is not accepted for an ephemeral container", FORBIDDEN)
    if container.restart_policy is not None:
        yield Problem(f"{path}.restartPolicy", shown(container.restart_policy), "it is never restarted", FORBIDDEN)
    if container.target_container_name and container.target_container_name not in known:
        wanted = f"a container of this pod is accepted: {', '.join(sorted(known))}"
        yield Problem(f"{path}.targetContainerName", shown(container.target_container_name), wanted)


def _without(path: str, container: Container, refused: tuple[str, ...], why: str) -> Iterator[Problem]:
    held = asdict(container)
    for field in refused:
        if held[field]:
            first, *rest = field.split("_")
            yield Problem(f"{path}.{first}{''.join(word.capitalize() for word in rest)}", "given", why, FORBIDDEN)


def added(old: Pod, new: Pod) -> tuple[Pod, tuple[Problem, ...]]:
    """The pod with the new one's ephemeral containers and nothing else of it; those that are there stay."""
    wished = {one.name: one for one in new.spec.ephemeral_containers}
    problems = tuple(
        Problem(
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
