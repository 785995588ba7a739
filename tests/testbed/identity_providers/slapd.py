"""Debian's slapd with a few entries, on ports of loopback."""

from __future__ import annotations

import datetime
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from master.auth import pki
from tests.testbed.ports import free_port
from tests.testbed.wait import wait_until

BASE = "dc=example"
SEARCH_DN, SEARCH_PASSWORD = f"cn=search,{BASE}", "may search"
UNPRIVILEGED = 65534
"""The user and group `nobody`."""

CONFIG = """\
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/inetorgperson.schema
modulepath /usr/lib/ldap
moduleload back_mdb
pidfile {root}/slapd.pid
TLSCertificateFile {root}/server.pem
TLSCertificateKeyFile {root}/server.pem
database mdb
suffix {base}
directory {root}/data
maxsize 10485760
access to attrs=userPassword by anonymous auth by * none
access to * by dn.exact={search_dn} read by * none
"""

ENTRIES = f"""\
dn: {BASE}
objectClass: dcObject
objectClass: organization
dc: example
o: Example

dn: {SEARCH_DN}
objectClass: organizationalRole
objectClass: simpleSecurityObject
cn: search
userPassword: {SEARCH_PASSWORD}

dn: ou=people,{BASE}
objectClass: organizationalUnit
ou: people

dn: uid=alice,ou=people,{BASE}
objectClass: inetOrgPerson
uid: alice
cn: Alice Liddell
cn: Alice
sn: Liddell
mail: alice@example.org
departmentNumber: 7
userPassword: wonderland

dn: uid=bob,ou=people,{BASE}
objectClass: inetOrgPerson
uid: bob
cn:: QsO2Yg==
sn: Builder
departmentNumber: 7
userPassword: can we fix it

dn: uid=a*(b)\\5c,ou=people,{BASE}
objectClass: inetOrgPerson
uid: a*(b)\\
cn: Special
sn: Special
userPassword: special

dn: uid=locked,ou=people,{BASE}
objectClass: inetOrgPerson
uid: locked
cn: Locked
sn: Locked

dn: ou=elsewhere,ou=people,{BASE}
objectClass: referral
objectClass: extensibleObject
ou: elsewhere
ref: ldap://127.0.0.1:1/ou=people,{BASE}
"""
"""`locked` has no password. A search of the people finds a referral to a server that does not exist, too."""


@dataclass(frozen=True, slots=True)
class Slapd:
    """A running slapd. `authority` is the file of the authority of its certificate, `log` has every operation."""

    port: int
    tls_port: int
    authority: Path
    log: Path
    process: subprocess.Popen[bytes]


@contextmanager
def running_slapd() -> Iterator[Slapd]:
    """Run a slapd, not as root, in a new directory, until the end of the block."""
    with TemporaryDirectory(prefix="slapd-") as directory:
        root = Path(directory)
        yield from _running(root)


def _running(root: Path) -> Iterator[Slapd]:
    now = datetime.datetime.now(datetime.UTC)
    pki.server_certificate(pki.authority(root, now), root, (), now)
    config, data = root / "slapd.conf", root / "data"
    config.write_text(CONFIG.format(root=root, base=BASE, search_dn=SEARCH_DN))
    data.mkdir()
    slapd = shutil.which("slapd", path=f"{os.environ['PATH']}:/usr/sbin")
    assert slapd is not None, "slapd is missing; make installs it"
    user = None
    if os.geteuid() == 0:
        user = UNPRIVILEGED
        for path in (root, data, root / "server.pem"):
            os.chown(path, user, user)
    ports = free_port(), free_port()
    urls = f"ldap://127.0.0.1:{ports[0]} ldaps://127.0.0.1:{ports[1]}"
    add = [slapd, "-T", "add", "-q", "-f", str(config)]
    subprocess.run(add, input=ENTRIES.encode(), check=True, capture_output=True, user=user, group=user)
    with (root / "log").open("wb") as log:
        process = subprocess.Popen(
            [slapd, "-f", str(config), "-h", urls, "-d", "stats"], stdout=log, stderr=log, user=user, group=user
        )
    try:
        wait_until(lambda: _answers(ports[1]) or process.poll() is not None, "slapd")
        assert process.poll() is None, (root / "log").read_text()
        yield Slapd(*ports, root / "ca.crt", root / "log", process)
    finally:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    with socket.socket() as ours:
        return ours.connect_ex(("127.0.0.1", port)) == 0
