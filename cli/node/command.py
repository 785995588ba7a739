"""`podlane node drain`: evicts the pods of a node. `podlane node remove`: deletes a node and revokes its identity."""

from __future__ import annotations

import argparse
import asyncio
import time
from http import HTTPStatus

import msgspec

from api.client.client import ApiError, Client, ClientError, InvalidResponse, NotFound, resource_path
from api.client.discovery import fetch_verified
from api.core.certificates import NODE_USER_PREFIX, CertificateSigningRequest
from api.core.config import ConfigMap
from api.core.node import Node
from api.core.pod import Pod
from api.core.removed_nodes import CONFIG_MAP, NAMESPACE
from api.meta.times import format_time
from api.meta.types import ObjectMeta
from api.network.types import HostSubnet
from api.pki import keys
from api.pki.pem import BadPem
from cli import kubeconfig, object_names
from cli.command import InputError, add_command, positive_number
from cli.kubeconfig import with_client
from cli.node.selection import DrainOptions, names, select

RETRY_SECONDS = 5.0
"""Between two requests to evict a pod that a budget keeps, as in kubectl."""

POLL_SECONDS = 0.2
SUBNET_SECONDS = 10.0


def add_commands(nodes: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands under `podlane node`."""
    drain_node = add_command(nodes, "drain", "keep new pods away from a node, and evict its pods", with_client(_drain))
    drain_node.add_argument("--force", action="store_true", help="also pods that no controller creates again")
    drain_node.add_argument(
        "--delete-emptydir-data", action="store_true", help="also pods with emptyDir volumes, whose data is lost"
    )
    drain_node.add_argument(
        "--ignore-daemonsets", action="store_true", help="leave pods of DaemonSets, which start again at once"
    )
    drain_node.add_argument(
        "--timeout", metavar="SECONDS", type=positive_number, help="seconds after which it gives up (never)"
    )
    remove_node = add_command(
        nodes, "remove", "delete a node, and refuse the certificates that it has", with_client(_remove)
    )
    remove_node.add_argument("--force", action="store_true", help="also a node that is Ready and has pods")
    for command in (drain_node, remove_node):
        command.add_argument("name", metavar="NODE", type=object_names.node)
        kubeconfig.add_argument(command)


# --- drain ------------------------------------------------------------------------------------------------------------


async def _drain(client: Client, arguments: argparse.Namespace) -> None:
    name = arguments.name
    await client.patch(Node, name, "", {"spec": {"unschedulable": True}})
    print(f"node {name} takes no new pods")
    options = DrainOptions(arguments.force, arguments.delete_emptydir_data, arguments.ignore_daemonsets)
    selection = select(await _pods(client, name), options)
    if selection.problems:
        lines = "\n".join(f"  {problem}" for problem in selection.problems)
        undo = f"kubectl uncordon {name} lets new pods onto it"
        raise InputError(f"no pod of {name} was evicted; {undo}\n{lines}")
    if selection.staying:
        print(f"these pods stay: {names(selection.staying)}")
    end = time.monotonic() + arguments.timeout if arguments.timeout else float("inf")
    results = await asyncio.gather(*(_evict(client, pod, end) for pod in selection.evicted), return_exceptions=True)
    failed = [result for result in results if isinstance(result, BaseException)]
    for error in failed:
        if not isinstance(error, ClientError):
            raise error
    if failed:
        lines = "\n".join(f"  {error}" for error in failed)
        raise InputError(f"{len(failed)} of {len(results)} pods of {name} were not evicted\n{lines}")
    print(f"node {name} is drained")


async def _pods(client: Client, node: str) -> list[Pod]:
    return list((await client.list(Pod, field_selector=f"spec.nodeName={node}")).items)


async def _evict(client: Client, pod: Pod, end: float) -> None:
    """Evict a pod, and wait until it is gone. Raises ClientError."""
    meta = pod.metadata
    path = resource_path(Pod, meta.namespace, meta.name, "eviction")
    where = {"name": meta.name, "namespace": meta.namespace}
    options = {"preconditions": {"uid": meta.uid}}
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": where, "deleteOptions": options}
    print(f"evicting pod {meta.namespace}/{meta.name}")
    while True:
        try:
            await client.request("POST", path, msgspec.json.encode(body))
            break
        except NotFound:
            return
        except ApiError as error:
            if error.status.code == HTTPStatus.CONFLICT and await _is_gone(client, pod):
                return
            if error.status.code != HTTPStatus.TOO_MANY_REQUESTS:
                raise ClientError(f"pod {meta.namespace}/{meta.name}: {error}") from None
            if time.monotonic() + RETRY_SECONDS > end:
                raise ClientError(f"pod {meta.namespace}/{meta.name}: not evicted in time: {error}") from None
            print(f"pod {meta.namespace}/{meta.name} stays for now: {error}")
            await asyncio.sleep(RETRY_SECONDS)
    while not await _is_gone(client, pod):
        if time.monotonic() > end:
            raise ClientError(f"pod {meta.namespace}/{meta.name}: evicted, and not gone in time")
        await asyncio.sleep(POLL_SECONDS)
    print(f"pod {meta.namespace}/{meta.name} is gone")


async def _is_gone(client: Client, pod: Pod) -> bool:
    try:
        current = await client.get(Pod, pod.metadata.name, pod.metadata.namespace)
    except NotFound:
        return True
    return current.metadata.uid != pod.metadata.uid


# --- remove -----------------------------------------------------------------------------------------------------------


async def _remove(client: Client, arguments: argparse.Namespace) -> None:
    name = arguments.name
    node = await client.get(Node, name)
    is_ready = any(condition.type == "Ready" and condition.status == "True" for condition in node.status.conditions)
    pods = select(await _pods(client, name), DrainOptions()).evicted if is_ready else ()
    if pods and not arguments.force:
        what = f"node {name} is Ready and has {len(pods)} pods: {names(pods)}"
        raise InputError(f"{what}. Nothing was changed; `podlane node drain {name}` evicts them, --force removes them")
    # First of all, so that the node cannot come back with a certificate that it has.
    await _revoke(client, name)
    for csr in (await client.list(CertificateSigningRequest)).items:
        if _is_of(csr, name):
            await _delete(client, CertificateSigningRequest, csr.metadata.name)
    # A request from before may have been signed meanwhile. None is left.
    await _revoke(client, name)
    await _delete(client, Node, name)
    await _wait_for_subnet(client, name)
    print(f"node {name} is removed, and its certificates are refused; on the host: podlane node reset --yes")


async def _revoke(client: Client, name: str) -> None:
    """Note that certificates of a node that were issued until now are refused. The clock of the master dates them."""
    now = (await fetch_verified(client.kubeconfig)).server_time
    if now is None:
        raise InvalidResponse("the master did not say its time; nothing was changed")
    entry = {name: format_time(now)}
    try:
        await client.patch(ConfigMap, CONFIG_MAP, NAMESPACE, {"data": entry})
    except NotFound:
        await client.create(ConfigMap(metadata=ObjectMeta(name=CONFIG_MAP, namespace=NAMESPACE), data=entry))


def _is_of(csr: CertificateSigningRequest, node: str) -> bool:
    """Return whether a request is for a certificate of a node."""
    try:
        return keys.parse_request(csr.spec.request).subject.user == f"{NODE_USER_PREFIX}{node}"
    except BadPem:
        return False


async def _delete(client: Client, kind: type[CertificateSigningRequest] | type[Node], name: str) -> None:
    try:
        await client.delete(kind, name)
    except NotFound:
        return


async def _wait_for_subnet(client: Client, name: str) -> None:
    """Wait until the master has freed the subnet of a node. Raises ClientError."""
    end = time.monotonic() + SUBNET_SECONDS
    while time.monotonic() < end:
        try:
            await client.get(HostSubnet, name)
        except NotFound:
            return
        await asyncio.sleep(POLL_SECONDS)
    raise ClientError(f"node {name} is removed, and its HostSubnet is there still; the master's log says why")
