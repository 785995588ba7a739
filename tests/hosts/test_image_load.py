"""`podlane image load` on the host of the master, which has no Docker: nodes get an image, and pods run it."""

from __future__ import annotations

import shutil

from tests.testbed.hosts.site import ADMIN, READY_SECONDS, Site
from tests.testbed.wait import wait_until

NAME = "example.test/app:v1"


def test_image_of_a_file_reaches_every_node(site: Site) -> None:
    first, file = site.nodes["node-1"], "root/app.tar"
    # Not the same image under another name, which nodes would not have to load.
    first.shell(f'docker create --name app podlane/toolbox; docker commit -c \'CMD ["sh", "-c", "id"]\' app {NAME}')
    first.shell(f"docker save -o /{file} {NAME}; docker rm app; docker rmi {NAME}")
    shutil.copy(first.path(file), site.master.path(file))
    output = site.master.run("podlane", "image", "load", f"/{file}", "--kubeconfig", ADMIN)
    assert all(f"{name} has " in output for name in site.nodes)
    for node in site.nodes.values():
        assert node.run("docker", "images", "-q", NAME).strip()
    run = ("run", "app", "-n", "red", f"--image={NAME}", "--restart=Never")
    phase = ("app", "-n", "red", "-o", "jsonpath={.status.phase}")
    try:
        site.kubectl(*run)
        wait_until(lambda: site.kubectl("get", "pod", *phase) == "Succeeded", "the pod has ended", READY_SECONDS)
        assert site.kubectl("logs", "-n", "red", "app").startswith("uid=")
    finally:
        site.kubectl("delete", "pod", "-n", "red", "app", "--ignore-not-found")
        for host in (first, site.master):
            host.shell(f"rm /{file}")
