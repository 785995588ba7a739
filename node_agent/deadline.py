"""When a pod has been active for long enough (`activeDeadlineSeconds`). Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from api import times
from api.objects import Pod
from node_agent.observed import PodContainers
from node_agent.stopping import LONGEST_GRACE

EXCEEDED = ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
"""Reason and message."""


def active_until(pod: Pod, seen: PodContainers, begun: datetime) -> datetime | None:
    """The moment, None without a deadline.

    It counts from the start that the status tells; while it tells none, from `begun` or the oldest container, whichever
    is earlier, so that a restart of the agent gives no pod more time.
    """
    if pod.spec.active_deadline_seconds is None:
        return None
    if pod.status.start_time:
        since = times.parse(pod.status.start_time)
    else:
        since = min([begun, *(one.created_at for one in seen.everything if one.created_at is not None)])
    return since + timedelta(seconds=min(pod.spec.active_deadline_seconds, LONGEST_GRACE))
