"""Sends a master valid and invalid requests according to its OpenAPI documents: `python -m tests.fuzz [DOCUMENT...]`.

A document is named as in the index of OpenAPI, such as `api/v1`; by default all documents are tested. No response may
be a 5xx or late, every response must match its schema, and no invalid request may be accepted. schemathesis prints how
to repeat a failed request.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from master.resources.scheme import BUILTIN_SCHEME
from master.server import openapi
from tests.testbed.apiserver.process import ApiServer

CHECKS = "not_a_server_error,response_schema_conformance,content_type_conformance,negative_data_rejection"
ANSWER_SECONDS = 30


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    documents = sorted(asyncio.run(openapi.OpenAPIDocuments(BUILTIN_SCHEME).index())["paths"])
    parser.add_argument("documents", nargs="*", metavar="DOCUMENT", default=documents)
    parser.add_argument("--program", default="schemathesis", help="where schemathesis is")
    parser.add_argument("--examples", type=int, default=20, help="how many random requests for each operation")
    parser.add_argument("--seed", type=int, default=1, help="the same seed sends the same requests")
    actual = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = ApiServer(Path(folder))
        server.start()
        try:
            files = _credentials(server.kubeconfig)
            bad = [document for document in actual.documents if not _passes(server.url, document, files, actual)]
        finally:
            ended = server.stop()
    sys.stdout.write(f"fuzz: {len(actual.documents) - len(bad)} of {len(actual.documents)} documents hold\n")
    return 1 if bad or ended else 0


def _credentials(kubeconfig: Path) -> tuple[Path, Path]:
    """Write the administrator's certificate with its key, and the authority, and return the files."""
    text = yaml.safe_load(kubeconfig.read_text())
    user, cluster = text["users"][0]["user"], text["clusters"][0]["cluster"]
    certificate, authority = kubeconfig.with_name("admin.pem"), kubeconfig.with_name("ca.pem")
    rows = (user["client-certificate-data"], user["client-key-data"])
    certificate.write_bytes(b"".join(base64.b64decode(encoded) for encoded in rows))
    authority.write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
    return certificate, authority


def _passes(url: str, document: str, files: tuple[Path, Path], desired: argparse.Namespace) -> bool:
    certificate, authority = files
    flags = {
        "url": url,
        "request-cert": certificate,
        "tls-verify": authority,
        "phases": "coverage,fuzzing",
        "max-examples": desired.examples,
        "seed": desired.seed,
        "checks": CHECKS,
        "request-timeout": ANSWER_SECONDS,
        "warnings": "off",
    }
    command = [desired.program, "run", f"{url}/openapi/v3/{document}"]
    options = [f"--{name}={value}" for name, value in flags.items()]
    done = subprocess.run(
        [*command, "--continue-on-failure", *options],
        env={**os.environ, "SCHEMATHESIS_HOOKS": "tests.fuzz.hooks", "PYTHONPATH": os.getcwd()},
        check=False,
    )
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
