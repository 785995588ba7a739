"""Starts one container: image, configuration, create, start, events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from api.core.config import Secret
from api.core.pod import Container as Wish
from api.core.pod import Pod
from api.core.references import env_refs, image_pull_secret_refs
from node_agent.host import pod_dir, termination_message_path
from node_agent.images.credentials import Credential, credentials_for_image
from node_agent.node import host_facts
from node_agent.object_cache import ObjectCache
from node_agent.runtime import pod_dir as runtime_pod_dir
from node_agent.runtime.actions import ContainerStart
from node_agent.runtime.container import RuntimePod
from node_agent.runtime.environment import EnvSources, container_env, service_env
from node_agent.runtime.sandbox import WorkerDependencies
from node_agent.runtime.security import SecurityInputs, container_security, seccomp_profile
from node_agent.runtime.spec import ContainerConfig, container_config
from node_agent.runtime.startup import target_container_id
from node_agent.volumes import mounts
from node_agent.volumes.paths import sub_paths


def pull_credentials(
    wish: Wish, pod: Pod, references: ObjectCache, tell: Callable[[str, str, str], None]
) -> tuple[Credential, ...]:
    """What the pod may show to the registry of a container's image; a secret that is missing is told and does without.

    Raises Unread while the master has not spoken.
    """
    wanted = image_pull_secret_refs(pod)
    found = references.found(wanted)
    for missing in (one for one in wanted if one not in found):
        words = f"Unable to retrieve some image pull secrets ({missing.name}); "
        words += "attempting to pull the image may not succeed."
        tell("FailedToRetrieveImagePullSecret", words, wish.name)
    return credentials_for_image(wish.image, (one for one in found.values() if isinstance(one, Secret)))


async def prepare_container_config(
    tools: WorkerDependencies, pod: Pod, start: ContainerStart, image: str, sandbox: str, seen: RuntimePod
) -> ContainerConfig:
    """The container as Docker is asked for it; the pod's status has its addresses.

    Raises Refused, with what is wrong in the pod or missing, Unread while the master has not spoken.
    """
    wish, host = start.wish, tools.host
    objects = tools.references.found(env_refs(wish, pod.metadata.namespace))
    known = container_env(pod, wish, EnvSources(objects, host.allocatable, service_env(pod, tools.services(pod))))
    profile = seccomp_profile(pod, wish)
    named = profile.localhost_profile if profile is not None else ""
    grounds = SecurityInputs(
        image_user=await tools.docker.image_user(image),
        seccomp=await asyncio.to_thread(runtime_pod_dir.read_seccomp_profile, host, named) if named else "",
        apparmor=host_facts.has_apparmor(),
        seccomp_default=host.seccomp_default,
    )
    parts = tuple(sub_paths(pod, wish, pod_dir(host, pod.metadata.uid), known))
    path = termination_message_path(host, pod.metadata.uid, wish.name, start.restarts)

    def prepare() -> None:
        mounts.mount_sub_paths(parts)
        runtime_pod_dir.make_termination_message_file(path)

    await asyncio.to_thread(prepare)
    rights = container_security(pod, wish, grounds)
    pid = target_container_id(wish, seen)
    spec = container_config(pod, wish, image, sandbox, start.restarts, start.crashes, host, rights, known, pid)
    return replace(spec, cgroup_parent=await tools.cgroups.create(pod))
