"""What a lab offers besides its cluster: the command, a shell in pods, and logs of a bounded size."""

from __future__ import annotations

import os
import subprocess

from lab.log_rotation import MAX_BYTES
from tests.testbed.lab.cluster import Cluster
from tests.testbed.wait import wait_until


def test_the_command_is_in_the_bin_folder_of_the_lab(cluster: Cluster) -> None:
    environment = {**os.environ, "PATH": f"{cluster.lab.root / 'bin'}:/usr/bin:/bin", "KUBECONFIG": ""}
    command = f"podlane version --kubeconfig={cluster.lab.kubeconfig}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines()[1].startswith("Server Version: v")


def test_pods_of_the_toolbox_have_bash(cluster: Cluster) -> None:
    done = cluster.kubectl("exec", "-n", "red", "red-1", "--", "bash", "-c", "words=(a b); echo ${words[1]^^}")
    assert done.stdout == "B\n"


def test_the_log_of_a_process_that_writes_past_the_bound_is_rotated(cluster: Cluster) -> None:
    log = cluster.nodes["node-1"].root / "log" / "sdn.log"
    before = log.read_bytes()
    with log.open("ab") as end:
        end.write(b"x" * MAX_BYTES + b"\n")
    previous = log.with_name("sdn.log.1")
    wait_until(lambda: previous.exists() and log.stat().st_size < MAX_BYTES, "the log is rotated")
    assert previous.stat().st_size == MAX_BYTES
    assert b"\ntime=20" in b"\n" + before
