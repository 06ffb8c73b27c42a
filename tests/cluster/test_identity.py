"""The identity of a node: its login to etcd, and its name, which no other live process may take."""

import signal

import httpx
import pytest

from group import Etcd, Group, Node, client, wait_for_same_keys
from server import TIMEOUT_SECS, wait_until

pytestmark = pytest.mark.larder


def call(etcd, path, body, token=None):
    """Sends a request to etcd's gateway."""
    answer = httpx.post(etcd.url + path, json=body, headers={"Authorization": token} if token else {})
    answer.raise_for_status()
    return answer.json()


@pytest.fixture
def locked():
    """Provides an etcd that requires a login, which takes it 80 ms of processor time."""
    with Etcd() as etcd:
        call(etcd, "/v3/auth/user/add", {"name": "root", "password": "secret"})
        call(etcd, "/v3/auth/role/add", {"name": "root"})
        call(etcd, "/v3/auth/user/grant", {"user": "root", "role": "root"})
        call(etcd, "/v3/auth/enable", {})
        yield etcd


def logins(etcd):
    """Returns the number of logins that etcd has accepted, and of those that it has refused or that have ended
    early."""
    counts = [0, 0]
    for line in httpx.get(etcd.url + "/metrics").text.splitlines():
        if line.startswith("grpc_server_handled_total") and '"Authenticate"' in line:
            counts['grpc_code="OK"' not in line] += int(float(line.split()[-1]))
    return counts


def test_each_node_logs_in_once(locked, tmp_path):
    password = tmp_path / "password"
    password.write_text("root:secret\n")
    with Group(locked, 6, "--cluster", "logins", "--etcd-password", str(password)) as group:
        assert client(group.followers()[0]).set("a", "1")
        # A login can time out on a busy machine.
        assert 6 <= sum(logins(locked)) <= 12, logins(locked)
        before = logins(locked)[0]
        # A change of the password makes all tokens invalid.
        token = call(locked, "/v3/auth/authenticate", {"name": "root", "password": "secret"})["token"]
        call(locked, "/v3/auth/user/changepw", {"name": "root", "password": "secret"}, token)
        leader, epoch = group.leader().name, group.leader().seen()["epoch"]
        wait_until(lambda: logins(locked)[0] >= before + 7, "new logins")
        assert before + 7 <= sum(logins(locked)) <= before + 19, logins(locked)
        assert (group.leader().name, group.leader().seen()["epoch"]) == (leader, epoch)
        assert client(group.followers()[0]).get("a") == b"1"


def test_a_wrong_password_is_named_in_the_log(locked, tmp_path):
    password = tmp_path / "password"
    password.write_text("root:wrong\n")
    with Node(locked, "n1", "--cluster", "wrong", "--etcd-password", str(password)) as node:
        wait_until(lambda: "authentication failed" in node.output(), "the reason")
        wait_until(lambda: logins(locked)[1] > 3, "further attempts")
        assert logins(locked)[0] == 0 and not node.leads()


def test_a_second_cluster_with_the_same_names_does_not_start(etcd, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("another secret of a cluster\n")
    with Group(etcd, 3, "--cluster", "twin") as group:
        leader = group.leader()
        client(leader).set_many({f"k{number}": "v" for number in range(100)})
        epoch = leader.seen()["epoch"]
        seconds = [
            Node(etcd, node.name, "--cluster", "twin", *options)
            for options in (["--cluster-secret", str(secret)], [])
            for node in group
        ]
        for second in seconds:
            status, shown = second.process.wait(TIMEOUT_SECS), second.output()
            second.dir.cleanup()
            assert status == 69, shown
            assert f"/larder/1/twin/live/0/{second.name}: process" in shown and "--node" in shown, shown
        assert group.leader() is leader and leader.seen()["epoch"] == epoch
        assert sorted(leader.seen()["in_sync"].split()) == ["n1", "n2", "n3"]
        for node in group:
            assert len(client(node).get_many([f"k{number}" for number in range(100)])) == 100


def test_a_node_whose_name_was_taken_exits(etcd):
    """A node that reaches etcd no longer loses its lease. If another process then takes its name, the node exits when
    it reaches etcd again."""
    with Group(etcd, 3, "--cluster", "taken") as group:
        former = group.leader()
        client(former).set("a", "1")
        wait_for_same_keys(group)
        former.signal(signal.SIGSTOP)
        wait_until(lambda: any(node.leads() for node in group if node is not former), "another leader")
        second = group.start(former.name)
        # It answers after it has registered its name.
        second.seen()
        former.signal(signal.SIGCONT)
        try:
            assert former.process.wait(TIMEOUT_SECS) == 69, former.output()
            assert "has this name and is live" in former.output()
        finally:
            former.kill()
            former.dir.cleanup()
        group.wait_until_in_sync()
        assert second.alive() and all(client(node).get("a") == b"1" for node in group)
