"""Manifests of pods and namespaces."""

from __future__ import annotations

import textwrap

SLEEPER = "exec httpd -f -p 8080 -h /"


def pod(name: str, namespace: str, node: str = "", grace: int = 2, command: str = SLEEPER, extra: str = "") -> str:
    bound = f"\n  nodeName: {node}" if node else ""
    return (
        textwrap.dedent(
            f"""\
        ---
        apiVersion: v1
        kind: Pod
        metadata: {{name: {name}, namespace: {namespace}}}
        spec:
          terminationGracePeriodSeconds: {grace}
          containers:
          - {{name: main, image: podlane/toolbox, command: [sh, -c, "{command}"]}}
        """
        ).rstrip()
        + bound
        + extra
        + "\n"
    )


def namespace(name: str) -> str:
    return f"---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}}}\n"
