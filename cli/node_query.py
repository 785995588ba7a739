"""Sends a NodeQuery to the network daemon of a node and waits for the answer."""

from __future__ import annotations

import asyncio
import contextlib
import time

from api.client.client import Client, ClientError, NotFound
from api.meta.types import ObjectMeta
from api.network.queries import NodeQuery, NodeQuerySpec, NodeQueryStatus

TIMEOUT_SECONDS = 10.0
POLL_SECONDS = 0.02


class QueryFailed(ClientError):
    """The query was not answered; `str(error)` says why."""


async def query_node(client: Client, spec: NodeQuerySpec, timeout_seconds: float = TIMEOUT_SECONDS) -> NodeQueryStatus:
    """Query a node, and return the answer. Raises QueryFailed on an error of the node, and after `timeout_seconds`."""
    try:
        query = await client.create(NodeQuery(metadata=ObjectMeta(generate_name="query-"), spec=spec))
    except NotFound:
        raise QueryFailed("this cluster's API server has no NodeQuery objects") from None
    try:
        status = await _answer(client, query, timeout_seconds)
    finally:
        with contextlib.suppress(NotFound):
            await client.delete(NodeQuery, query.metadata.name)
    if status.error:
        raise QueryFailed(f"{spec.node_name} cannot answer: {status.error}")
    return status


async def _answer(client: Client, query: NodeQuery, timeout_seconds: float) -> NodeQueryStatus:
    deadline = time.monotonic() + timeout_seconds
    while True:
        node_query = await client.get(NodeQuery, query.metadata.name)
        if node_query.status.answered:
            return node_query.status
        if time.monotonic() > deadline:
            name = query.spec.node_name
            raise QueryFailed(f"{name} has not answered within {timeout_seconds:.0f} s; does podlane-sdn run there?")
        await asyncio.sleep(POLL_SECONDS)
