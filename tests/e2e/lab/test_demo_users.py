"""The demo users of the lab: what they may do with kubectl, what is refused, and that the lab notices otherwise."""

from __future__ import annotations

import asyncio
import subprocess

from lab import users
from tests.testbed.lab.cluster import Cluster
from tests.testbed.wait import CALL_SECONDS


def kubectl(cluster: Cluster, user: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run kubectl as a demo user."""
    command = ("kubectl", f"--kubeconfig={users.kubeconfig_file(cluster.lab, user)}", *words)
    return subprocess.run(command, capture_output=True, text=True, timeout=CALL_SECONDS, check=False)


def test_demo_user_works_in_its_project_and_nowhere_else(cluster: Cluster) -> None:
    pod = ("run", "own", "--image=podlane/toolbox", "--image-pull-policy=Never", "--", "sleep", "1000")
    try:
        assert kubectl(cluster, "red", "-n", "red", *pod).returncode == 0
        cluster.wait_running("red", "own")
        identity = kubectl(cluster, "red", "-n", "red", "exec", "own", "--", "id", "-u")
        assert int(identity.stdout) >= 1_000_000_000
        assert kubectl(cluster, "red", "-n", "red", "exec", "red-1", "--", "true").returncode == 0
        foreign = kubectl(cluster, "red", "-n", "blue", "exec", "blue-1", "--", "true")
        assert "forbidden" in foreign.stderr.lower()
        assert kubectl(cluster, "blue", "-n", "blue", "exec", "blue-1", "--", "true").returncode == 0
    finally:
        kubectl(cluster, "red", "-n", "red", "delete", "pod", "own", "--grace-period=0", "--force", "--wait=false")


def test_lab_reports_a_user_with_too_many_rights(cluster: Cluster) -> None:
    assert asyncio.run(users.attempt_all(cluster.lab)).unexpected == ()
    cluster.kubectl("-n", "blue", "create", "rolebinding", "leak", "--clusterrole=view", "--user=red")
    try:
        assert asyncio.run(users.attempt_all(cluster.lab)).unexpected == ("user red may read pods of blue",)
    finally:
        cluster.kubectl("-n", "blue", "delete", "rolebinding", "leak")
    cluster.kubectl("-n", "red", "delete", "rolebinding", "admin")
    try:
        unexpected = asyncio.run(users.attempt_all(cluster.lab)).unexpected
        assert unexpected == tuple(f"user red may not {attempt.what}" for attempt in users.allowed_attempts("red"))
    finally:
        cluster.kubectl("-n", "red", "create", "rolebinding", "admin", "--clusterrole=admin", "--user=red")
