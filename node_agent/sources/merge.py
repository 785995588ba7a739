"""The sets of all sources → the pods of the node. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from api.objects import Pod
from node_agent.sources.reading import name_of


@dataclass(frozen=True, slots=True)
class Offer:
    """All the pods that one place (a path, a URL, the master) has for this node."""

    place: str
    pods: tuple[Pod, ...]


@dataclass(frozen=True, slots=True)
class Double:
    """A pod that is left out because another has its name; `first` is where that one is from."""

    pod: Pod
    place: str
    first: str


def merge(offers: Iterable[Offer]) -> tuple[dict[str, Pod], tuple[Double, ...]]:
    """By UID, and what is left out: of several pods with one namespace and name, or one UID, the first counts."""
    pods: dict[str, Pod] = {}
    doubles: list[Double] = []
    places: dict[tuple[str, str], str] = {}
    for offer in offers:
        for pod in offer.pods:
            name, uid = name_of(pod), pod.metadata.uid
            if name in places or uid in pods:
                doubles.append(Double(pod, offer.place, places[name if name in places else name_of(pods[uid])]))
                continue
            places[name] = offer.place
            pods[uid] = pod
    return pods, tuple(doubles)
