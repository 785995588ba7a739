"""`podlane network capture`: what goes over the port of a pod, as a file of packets."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from api.client.client import Client
from api.core.pod import Pod
from api.network.queries import CaptureRequest, NodeQuerySpec
from cli.node_query import TIMEOUT_SECONDS, QueryFailed, query_node
from cli.trace.command import pods_with_addresses
from cli.trace.topology import find_pod


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Whose packets, and how many."""
    parser.add_argument("pod", metavar="POD", help="PROJECT/POD or its address")
    parser.add_argument("--packets", type=int, default=100, metavar="N", help="at most so many (100)")
    parser.add_argument("--seconds", type=int, default=10, metavar="S", help="for at most so long (10)")
    parser.add_argument("--out", metavar="FILE", help="where to write the pcap file; - is standard output (POD.pcap)")


async def take(client: Client, arguments: argparse.Namespace) -> None:
    """Write the file."""
    pod = find_pod(arguments.pod, pods_with_addresses((await client.list(Pod)).items))
    if pod is None:
        raise QueryFailed(f"{arguments.pod!r} is neither PROJECT/POD of a pod that has an address, nor that address")
    asked = CaptureRequest(pod=str(pod.address), packets=arguments.packets, seconds=arguments.seconds)
    told = f"at most {asked.packets} packets of {pod} on {pod.node}, for at most {asked.seconds} s"
    print(told, file=sys.stderr, flush=True)
    status = await query_node(client, NodeQuerySpec(node_name=pod.node, capture=asked), TIMEOUT_SECONDS + asked.seconds)
    await asyncio.to_thread(_write, status.pcap, arguments.out or f"{pod.name.rpartition('/')[2]}.pcap")


def _write(pcap: bytes, out: str) -> None:
    if out == "-":
        sys.stdout.buffer.write(pcap)
        return
    Path(out).write_bytes(pcap)
    print(f"{out}: read it with tcpdump -n -r {out}", file=sys.stderr)
