"""How much a pod may send and receive: two annotations, in bits a second. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from api import quantity
from api.schema import Problem, shown

INGRESS, EGRESS = "kubernetes.io/ingress-bandwidth", "kubernetes.io/egress-bandwidth"
LEAST, MOST = 1_000, 10**15


def check(annotations: Mapping[str, str]) -> Iterator[Problem]:
    """What is wrong with them."""
    for key in (INGRESS, EGRESS):
        text = annotations.get(key)
        if text is None:
            continue
        path = f"metadata.annotations[{key}]"
        try:
            if not LEAST <= quantity.parse(text) <= MOST:
                yield Problem(path, shown(text), "1k to 1P bits a second are accepted")
        except quantity.BadQuantity as error:
            yield Problem(path, shown(text), str(error))


def limits(annotations: Mapping[str, str]) -> tuple[int, int]:
    """What a pod may receive and send, in bits a second; 0 where nothing is said. The annotations have been checked."""
    return (quantity.whole(annotations.get(INGRESS, "0")), quantity.whole(annotations.get(EGRESS, "0")))
