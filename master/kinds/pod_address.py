"""PodAddress: another form of a Pod, for nodes: whose an address of the cluster network is, and no more. Pure."""

from __future__ import annotations

import datetime

from api.core.pod import Pod, PodSpec, PodStatus
from api.meta.types import ObjectMeta
from api.network.types import PodAddress
from api.validation.registry import KindRules
from master.kinds.kind import AGE, NAME, READ_VERBS, Column, Conversion, Kind, age, or_none
from master.kinds.pod import POD


def _seen(pod: Pod) -> PodAddress:
    meta = pod.metadata
    return PodAddress(
        metadata=ObjectMeta(
            name=meta.name,
            namespace=meta.namespace,
            uid=meta.uid,
            resource_version=meta.resource_version,
            creation_timestamp=meta.creation_timestamp,
            deletion_timestamp=meta.deletion_timestamp,
        ),
        phase=pod.status.phase,
        ip=pod.status.pod_ip,
        host_network=pod.spec.host_network,
    )


def _kept(item: PodAddress) -> Pod:
    """As much of it as is seen. Nothing is written in this form."""
    return Pod(
        metadata=item.metadata,
        spec=PodSpec(host_network=item.host_network),
        status=PodStatus(phase=item.phase, pod_ip=item.ip),
    )


def _cells(item: PodAddress, now: datetime.datetime) -> tuple[object, ...]:
    created = item.metadata.creation_timestamp
    return item.metadata.name, or_none(item.ip), item.phase, item.host_network, age(created, now)


POD_ADDRESS = Kind(
    type=PodAddress,
    plural="podaddresses",
    singular="podaddress",
    namespaced=True,
    columns=(
        NAME,
        Column("IP", "The pod's address."),
        Column("Phase", "Pending, Running, Succeeded, Failed or Unknown."),
        Column("Host network", "Whether the address is that of its node.", type="boolean"),
        AGE,
    ),
    cells=_cells,
    own_rules=KindRules(),
    conversion=Conversion(POD, _seen, _kept),
    verbs=READ_VERBS,
    refusal="it is another form of a pod, to be read: write the pod",
)
