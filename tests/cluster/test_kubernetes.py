"""The manifests of deploy/kubernetes: nodes with their command lines form a group, and their probes report whether a
node is ready.

Each pod is a process with its own loopback address. Kubernetes itself is not tested.
"""

import os
import random
import subprocess
from contextlib import ExitStack

import pytest
import yaml

from group import Etcd, client
from server import LARDERD, ROOT, Server, wait_until

pytestmark = pytest.mark.larder

MANIFESTS = {
    (one["kind"], one["metadata"]["name"]): one
    for one in yaml.safe_load_all((ROOT / "deploy/kubernetes/larder.yaml").read_text())
}
SET = MANIFESTS["StatefulSet", "larder"]["spec"]
POD = SET["template"]["spec"]
(CONTAINER,) = POD["containers"]


class Pod(Server):
    """A container of the stateful set, with the command line and probes that Kubernetes would use."""

    def __init__(self, number, ip, replaced):
        self.env = {"POD_NAME": f"larder-{number}", "POD_IP": ip}
        self.replaced = replaced
        options = [self.text(one) for one in CONTAINER["args"]]
        # `Server` sets the address.
        options.remove(f"--listen={ip}")
        super().__init__(LARDERD, options=["-v", *options], host=ip, port=11211)

    def text(self, text):
        for name, value in self.env.items():
            text = text.replace(f"$({name})", value)
        for name, value in self.replaced.items():
            text = text.replace(name, value)
        return text

    def is_ready(self):
        command = [self.text(one) for one in CONTAINER["readinessProbe"]["exec"]["command"]]
        path = f"{LARDERD.parent}:{os.environ['PATH']}"
        env = {**os.environ, **self.env, "PATH": path}
        return subprocess.run(command, env=env, capture_output=True).returncode == 0


def test_the_parts_fit_together():
    labels = SET["template"]["metadata"]["labels"]
    assert SET["selector"]["matchLabels"] == labels
    assert MANIFESTS["PodDisruptionBudget", "larder"]["spec"]["selector"]["matchLabels"] == labels
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    for name in ("larder", SET["serviceName"]):
        service = MANIFESTS["Service", name]["spec"]
        assert service["selector"] == labels
        assert [ports[port["targetPort"]] for port in service["ports"]] == [11211]
    limit = next(int(one.split("=")[1]) for one in CONTAINER["args"] if one.startswith("--memory-limit="))
    assert CONTAINER["resources"]["limits"]["memory"] == f"{limit + 64}Mi"
    assert {mount["name"] for mount in CONTAINER["volumeMounts"]} == {one["name"] for one in POD["volumes"]}


def test_pods_form_a_group_and_are_ready_when_they_have_all_items(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("a secret of the cluster\n")
    secret.chmod(0o600)
    network = f"127.{random.randrange(1, 255)}.{random.randrange(256)}."
    with Etcd() as etcd, ExitStack() as stack:
        replaced = {"http://etcd:2379": etcd.url, "/run/larder/secret": str(secret), "--memory-limit=1024": "--memory-limit=64"}
        pods = []
        for number in range(3):
            pods.append(Pod(number, f"{network}{number + 1}", replaced))
            stack.callback(pods[-1].stop)
        wait_until(lambda: all(pod.is_ready() for pod in pods), "all pods are ready")
        assert client(pods[2]).set("a", "1")
        assert client(pods[1]).get("a") == b"1"
        pods[0].process.kill()
        pods[0].process.wait()
        wait_until(lambda: not pods[0].is_ready(), "the lost pod is not ready")
        wait_until(lambda: pods[1].is_ready() and pods[2].is_ready(), "the others are")
        assert client(pods[1]).get("a") == b"1"
