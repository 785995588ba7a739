"""The first documents are decoded in several threads at once."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

FRESH_PROCESSES = 12

FIRST_TWO = """
import sys, threading
sys.setswitchinterval(1e-6)
from api.codec.json import decode_json
from api.core.pod import Pod
from api.validation.registry import decode
begin = threading.Barrier(2)
def read():
    begin.wait()
    assert decode(Pod, {})[1]
other = threading.Thread(target=read)
other.start()
begin.wait()
assert decode_json(b'{"spec":{"containers":[{"name":"a"}]}}', Pod).spec.containers
other.join()
"""


def test_two_threads_decode_the_first_pod_at_once() -> None:
    """Without the kinds being known beforehand, about one process of three dies."""

    def ended(_: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", FIRST_TWO], capture_output=True, text=True, check=False)

    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(ended, range(FRESH_PROCESSES)))
    assert [(result.returncode, result.stderr) for result in results] == [(0, "")] * FRESH_PROCESSES
