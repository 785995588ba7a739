"""Starts one container: image, configuration, create, start, events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from api.core.config import Secret
from api.core.pod import Container, Pod
from api.core.references import env_refs, image_pull_secret_refs
from api.core.services import Service
from node_agent.cgroups.manager import CgroupManager
from node_agent.clock import steady_clock
from node_agent.docker.client import DockerClient
from node_agent.event_recorder import PodEvents
from node_agent.host import HostInfo, pod_dir, termination_message_path
from node_agent.images.credentials import Credential, credentials_for_image
from node_agent.images.manager import ImageManager, ImageUnavailable
from node_agent.network.plugin import refers_to_pod_address
from node_agent.node import host_facts
from node_agent.object_cache import ObjectCache
from node_agent.runtime import pod_files
from node_agent.runtime.actions import ContainerStart
from node_agent.runtime.container import RuntimePod
from node_agent.runtime.environment import EnvSources, container_env, service_env
from node_agent.runtime.security import SecurityInputs, SecurityOptions, container_security, seccomp_profile
from node_agent.runtime.spec import ContainerConfig, ContainerInputs, container_config
from node_agent.runtime.startup import target_container_id
from node_agent.volumes import mounts
from node_agent.volumes.paths import sub_paths
from reconcile.errors import Refused

log = logging.getLogger(__name__)

RETRY_DELAY = timedelta(seconds=10)
"""Wait after Docker refused a container."""


@dataclass(frozen=True, slots=True)
class StartFailure:
    """Reason and message of the waiting state of a container that was not started.

    `retry_at`, by the steady clock, is None if only a change of the pod or of its images can help.
    """

    reason: str
    message: str
    retry_at: datetime | None


class ContainerStarter:
    """Starts containers of one pod. `services` returns the services that a pod's environment variables describe."""

    def __init__(
        self,
        docker: DockerClient,
        images: ImageManager,
        objects: ObjectCache,
        services: Callable[[Pod], Collection[Service]],
        cgroups: CgroupManager,
        host: HostInfo,
        events: PodEvents,
    ) -> None:
        self._docker = docker
        self._images = images
        self._objects = objects
        self._services = services
        self._cgroups = cgroups
        self._host = host
        self._events = events

    def is_independent_of_sandbox(self, container: Container) -> bool:
        """Return whether a container can be created before its sandbox runs and has an address.

        Its image must be known to be present, because a pull would delay the sandbox.
        """
        return self._images.needs_no_pull(container) and not refers_to_pod_address(container)

    async def create(
        self,
        pod: Pod,
        start: ContainerStart,
        sandbox_id: str,
        runtime_pod: RuntimePod,
        before_pull: Callable[[], Awaitable[None]],
    ) -> str | StartFailure:
        """Create a container. Return its ID, or the failure if it was not created.

        `pod`: its status has the addresses, its claims are resolved to volumes. `before_pull` is awaited before an
        image is pulled, so that the pod's status shows that the container waits for its image.

        Raises NotSynced while an object that the container refers to was not read. Raises NotReady.
        """
        container = start.container
        image = await self._images.ensure_present(container, self._pull_credentials(pod, container), before_pull)
        if isinstance(image, ImageUnavailable):
            return StartFailure(image.reason, image.message, image.retry_at)
        try:
            config = await self._config(pod, start, image, sandbox_id, runtime_pod)
        except Refused as error:
            return self._failure(container, "CreateContainerConfigError", error)
        try:
            container_id = await self._docker.create(config)
        except Refused as error:
            return self._failure(container, "CreateContainerError", error)
        self._events.record("Created", "Container created", container.name)
        return container_id

    async def start(self, pod: Pod, container: Container, container_id: str) -> StartFailure | None:
        """Start a created container. Return the failure if it was not started, otherwise None. Raises NotReady."""
        try:
            await self._docker.start(container_id)
        except Refused as error:
            pod_name = f"{pod.metadata.namespace}/{pod.metadata.name}"
            fields = {"pod": pod_name, "container": container.name, "error": error}
            log.warning("container could not be started", extra=fields)
            return self._failure(container, "RunContainerError", error)
        self._events.record("Started", "Container started", container.name)
        return None

    def _failure(self, container: Container, reason: str, error: Refused) -> StartFailure:
        self._events.record("Failed", f"Error: {error}", container.name)
        return StartFailure(reason, str(error), steady_clock() + RETRY_DELAY)

    def _pull_credentials(self, pod: Pod, container: Container) -> tuple[Credential, ...]:
        """Return the credentials for the registry of the container's image. Record an event for each missing secret.

        Raises NotSynced.
        """
        references = image_pull_secret_refs(pod)
        secrets = self._objects.get(references)
        for missing_secret in (reference for reference in references if reference not in secrets):
            message = (
                f"Unable to retrieve some image pull secrets ({missing_secret.name}); "
                "attempting to pull the image may not succeed."
            )
            self._events.record("FailedToRetrieveImagePullSecret", message, container.name)
        return credentials_for_image(
            container.image, (secret for secret in secrets.values() if isinstance(secret, Secret))
        )

    async def _config(
        self, pod: Pod, start: ContainerStart, image: str, sandbox_id: str, runtime_pod: RuntimePod
    ) -> ContainerConfig:
        """Return the configuration, and create the files and subPath mounts on the host that it mounts.

        Raises Refused with the error in the pod or the missing object. Raises NotSynced.
        """
        container = start.container
        env = self._env(pod, container)
        security = await self._security(pod, container, image)
        sub_path_mounts = tuple(sub_paths(pod, container, pod_dir(self._host, pod.metadata.uid), env))
        message_path = termination_message_path(self._host, pod.metadata.uid, container.name, start.restarts)

        def prepare_host() -> None:
            mounts.mount_sub_paths(sub_path_mounts)
            pod_files.make_termination_message_file(message_path)

        await asyncio.to_thread(prepare_host)
        inputs = ContainerInputs(
            image=image,
            sandbox_id=sandbox_id,
            restarts=start.restarts,
            crashes=start.crashes,
            env=env,
            security=security,
            target_id=target_container_id(container, runtime_pod),
        )
        config = container_config(pod, container, inputs, self._host)
        return replace(config, cgroup_parent=await self._cgroups.create(pod))

    def _env(self, pod: Pod, container: Container) -> dict[str, str]:
        objects = self._objects.get(env_refs(container, pod.metadata.namespace))
        services = service_env(pod, self._services(pod))
        return container_env(pod, container, EnvSources(objects, self._host.allocatable, services))

    async def _security(self, pod: Pod, container: Container, image: str) -> SecurityOptions:
        profile = seccomp_profile(pod, container)
        seccomp = ""
        if profile is not None and profile.localhost_profile:
            seccomp = await asyncio.to_thread(pod_files.read_seccomp_profile, self._host, profile.localhost_profile)
        inputs = SecurityInputs(
            image_user=await self._docker.image_user(image),
            seccomp=seccomp,
            apparmor=host_facts.has_apparmor(),
            seccomp_default=self._host.seccomp_default,
        )
        return container_security(pod, container, inputs)
