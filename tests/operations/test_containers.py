"""Starts of larderd with the restrictions of containers."""

import os
import subprocess
from pathlib import Path

import pytest
from server import LARDERD, wait_until

pytestmark = pytest.mark.larder

MAP = "0 0 65536\n"


def start_without_groups(*command, **more):
    """Starts a command as root of a user namespace that forbids setting groups."""
    waiting = ["unshare", "-U", "sh", "-c", 'read -r line; exec "$@"', "sh", *command]
    process = subprocess.Popen(waiting, stdin=subprocess.PIPE, stderr=subprocess.PIPE, **more)
    entry, own = Path(f"/proc/{process.pid}"), os.readlink("/proc/self/ns/user")
    wait_until(lambda: process.poll() is not None or os.readlink(entry / "ns/user") != own, "the namespace")
    for name, text in [("setgroups", "deny"), ("uid_map", MAP), ("gid_map", MAP)]:
        (entry / name).write_text(text)
    process.stdin.write(b"\n")
    process.stdin.flush()
    return process


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may map all users into a namespace")
def test_a_container_may_forbid_setting_groups(tmp_path):
    ports = tmp_path / "ports"
    environment = {"PATH": os.environ["PATH"], "MEMCACHED_PORT_FILENAME": str(ports)}
    server = start_without_groups(LARDERD, "-u", "nobody", "-l", "127.0.0.1:0", env=environment)
    try:
        line = server.stderr.readline().decode()
        assert "keeping the supplementary groups" in line
        wait_until(lambda: server.poll() is not None or Path(f"/proc/{server.pid}").stat().st_uid != 0, "the user")
        assert server.poll() is None
    finally:
        server.kill()
        server.wait()
