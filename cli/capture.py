"""`podlane network capture`: captures the packets at the port of a pod into a pcap file."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from api.client.client import Client
from api.core.pod import Pod
from api.network.queries import CaptureRequest, NodeQuerySpec
from api.validation.network import MAX_CAPTURE_PACKETS, MAX_CAPTURE_SECONDS
from cli import object_names
from cli.command import require_writable, whole_number
from cli.node_query import TIMEOUT_SECONDS, QueryFailed, query_node
from cli.project import check_project_of
from cli.trace.command import pods_with_addresses
from cli.trace.topology import find_pod


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that select the pod and limit the capture."""
    parser.add_argument("pod", metavar="POD", type=object_names.pod, help="PROJECT/POD or its address")
    parser.add_argument(
        "--packets",
        type=whole_number(MAX_CAPTURE_PACKETS),
        default=100,
        metavar="N",
        help="maximum number of packets (100)",
    )
    parser.add_argument(
        "--seconds", type=whole_number(MAX_CAPTURE_SECONDS), default=10, metavar="S", help="maximum duration (10)"
    )
    parser.add_argument("--out", metavar="FILE", help="the pcap file; - is standard output (POD.pcap)")


async def take(client: Client, arguments: argparse.Namespace) -> None:
    """Capture packets, and write the file."""
    pod = find_pod(arguments.pod, pods_with_addresses((await client.list(Pod)).items))
    if pod is None:
        await check_project_of(client, arguments.pod)
        raise QueryFailed(f"{arguments.pod!r} is neither PROJECT/POD of a pod that has an address, nor that address")
    out = arguments.out or f"{pod.name.rpartition('/')[2]}.pcap"
    if out != "-":
        require_writable(Path(out))
    request = CaptureRequest(pod=str(pod.address), packets=arguments.packets, seconds=arguments.seconds)
    limits = f"at most {request.packets} packets of {pod} on {pod.node}, for at most {request.seconds} s"
    print(limits, file=sys.stderr, flush=True)
    status = await query_node(
        client, NodeQuerySpec(node_name=pod.node, capture=request), TIMEOUT_SECONDS + request.seconds
    )
    await asyncio.to_thread(_write, status.pcap, out)


def _write(pcap: bytes, out: str) -> None:
    if out == "-":
        sys.stdout.buffer.write(pcap)
        return
    Path(out).write_bytes(pcap)
    print(f"{out}: read it with tcpdump -n -r {out}", file=sys.stderr)
