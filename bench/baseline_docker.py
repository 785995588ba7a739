"""The containers of pods, created by a bare client: the time of Docker alone."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import docker

from bench.pod_timestamps import Docked

IN_FLIGHT = (6, 10, 16)
"""Docker is asked for so many pods at once to find out with how many it is fastest."""


class BarePods:
    """Pods like one that the agent has made: two containers each, in its control group, without the agent's marks.

    The pod stays as long as this is used: its directory is mounted.
    """

    def __init__(self, socket: str, docked: Docked, pod: str) -> None:
        self._docked = docked
        self._client: Any = docker.APIClient(
            base_url=f"unix://{socket}", version="1.41", timeout=120, max_pool_size=max(IN_FLIGHT)
        )
        filters = {"label": f"io.kubernetes.pod.name={pod}"}
        rows = [
            self._client.inspect_container(container["Id"]) for container in self._client.containers(filters=filters)
        ]
        self._box = _config(next(container for container in rows if container["HostConfig"]["NetworkMode"] == "none"))
        self._main = _config(next(container for container in rows if container["HostConfig"]["NetworkMode"] != "none"))
        self._made: list[str] = []

    def make(self, name: str) -> float:
        """Create a pod. Return the start of its second container, in seconds since 1970."""
        box = self._start(self._box, f"{name}-box")
        inside = {"NetworkMode": f"container:{box}", "IpcMode": f"container:{box}"}
        main = self._main | {"Hostname": "", "Domainname": "", "HostConfig": self._main["HostConfig"] | inside}
        return self._docked.wait(self._start(main, f"{name}-main"))

    def rate(self, count: int, in_flight: int) -> float:
        """Pods a second, with so many in flight."""
        begin = time.time()
        with ThreadPoolExecutor(in_flight) as threads:
            ends = list(threads.map(self.make, [f"bare-{number}" for number in range(count)]))
        self.remove()
        return count / (max(ends) - begin)

    def remove(self) -> None:
        """Remove all created containers."""
        with ThreadPoolExecutor(max(IN_FLIGHT)) as threads:
            list(
                threads.map(
                    lambda container_id: self._client.remove_container(container_id, force=True, v=True), self._made
                )
            )
        self._made.clear()

    def close(self) -> None:
        """Remove the containers, also after a failed creation."""
        self.remove()
        self._client.close()

    def _start(self, config: dict[str, Any], name: str) -> str:
        identity = str(self._client.create_container_from_config(config, name)["Id"])
        self._made.append(identity)
        self._client.start(identity)
        return identity


def _config(container: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration to create such a container again."""
    return {**container["Config"], "HostConfig": container["HostConfig"], "Labels": {}}


def best_in_flight(bare: BarePods, count: int) -> int:
    """Return the number of pods in flight at which Docker creates most pods a second."""
    rates = {in_flight: bare.rate(count, in_flight) for in_flight in IN_FLIGHT}
    return max(rates, key=lambda in_flight: rates[in_flight])
