"""The identity of a node: its login to etcd, and its name. No other live process may use the same name."""

import signal

import httpx
import pytest

from group import ALL_KEYS, Etcd, Group, Node, client, decode, encode, larder, wait_for_same_keys
from server import TIMEOUT_SECS, ExitedAtStart, wait_until

pytestmark = pytest.mark.larder


@pytest.fixture
def locked():
    """Provides an etcd that requires a login. Each login takes 80 ms of processor time."""
    with Etcd() as etcd:
        etcd.call("/v3/auth/user/add", {"name": "root", "password": "secret"})
        etcd.call("/v3/auth/role/add", {"name": "root"})
        etcd.call("/v3/auth/user/grant", {"user": "root", "role": "root"})
        etcd.call("/v3/auth/enable", {})
        yield etcd


def logins(etcd):
    """Returns the number of logins that etcd has accepted, and the number of logins that it has refused or that were
    aborted."""
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
        # Allow further logins, because a login can time out on a busy machine.
        assert 6 <= sum(logins(locked)) <= 12, logins(locked)
        before = logins(locked)[0]
        # A change of the password invalidates all tokens.
        login = {"name": "root", "password": "secret"}
        token = locked.call("/v3/auth/authenticate", login)["token"]
        locked.call("/v3/auth/user/changepw", login, token)
        leader, epoch = group.leader().name, group.leader().seen()["epoch"]
        # A follower reads nothing from etcd, and needs no token, until a key changes.
        token = locked.call("/v3/auth/authenticate", login)["token"]
        locked.call("/v3/kv/put", {"key": encode("other"), "value": ""}, token)
        wait_until(lambda: logins(locked)[0] >= before + 8, "new logins")
        assert before + 8 <= sum(logins(locked)) <= before + 20, logins(locked)
        assert (group.leader().name, group.leader().seen()["epoch"]) == (leader, epoch)
        assert client(group.followers()[0]).get("a") == b"1"


def test_a_wrong_password_is_named_in_the_log(locked, tmp_path):
    password = tmp_path / "password"
    password.write_text("root:wrong\n")
    with Node(locked, "n1", "--cluster", "wrong", "--etcd-password", str(password)) as node:
        wait_until(lambda: "authentication failed" in node.output(), "the reason")
        wait_until(lambda: logins(locked)[1] > 3, "further attempts")
        assert logins(locked)[0] == 0 and not node.leads()


@pytest.fixture
def secrets(tmp_path):
    """Provides two files with secrets."""
    files = tmp_path / "one", tmp_path / "other"
    for file in files:
        file.write_text(f"the secret {file.name} of a cluster\n")
    return [str(file) for file in files]


def refusal(etcd, name, *options):
    """Starts a node that must refuse to start. Returns its log."""
    try:
        node = Node(etcd, name, *options)
        status, shown = node.process.wait(TIMEOUT_SECS), node.output()
        node.dir.cleanup()
    except ExitedAtStart as refused:
        status, shown = refused.status, refused.output
    assert status == 69, shown
    return shown


def test_a_second_cluster_with_the_same_names_does_not_start(etcd, secrets):
    one, other = secrets
    with Group(etcd, 3, "--cluster", "twin", "--cluster-secret", one) as group:
        leader = group.leader()
        client(leader).set_many({f"k{number}": "v" for number in range(100)})
        epoch = leader.seen()["epoch"]
        for name in ["n1", "n2", "n3", "m1"]:
            shown = refusal(etcd, name, "--cluster", "twin", "--cluster-secret", other)
            assert "cluster twin in etcd has another secret" in shown, shown
            shown = refusal(etcd, name, "--cluster", "twin")
            assert "cluster twin in etcd has a secret: set --cluster-secret" in shown, shown
        for node in group:
            shown = refusal(etcd, node.name, "--cluster", "twin", "--cluster-secret", one)
            assert f"/larder/1/twin/live/0/{node.name}: process" in shown and "--node" in shown, shown
        assert all("the secret" not in node.output() for node in group), "secrets are not logged"
        assert group.leader() is leader and leader.seen()["epoch"] == epoch
        assert sorted(leader.seen()["in_sync"].split()) == ["n1", "n2", "n3"]
        for node in group:
            assert len(client(node).get_many([f"k{number}" for number in range(100)])) == 100


def test_the_secret_is_replaced_while_all_nodes_are_stopped(etcd, secrets):
    one, other = secrets
    with Group(etcd, 1, "--cluster", "secret", "--cluster-secret", one):
        done, shown = larder(etcd, "set-secret", "secret", other)
        assert not done and "stop all nodes" in shown, shown
    # The node has revoked its lease at its exit, so no node is live and the operator can replace the secret.
    assert larder(etcd, "set-secret", "secret", other) == (True, "cluster secret has a new secret: its nodes can start")
    assert "has another secret" in refusal(etcd, "n1", "--cluster", "secret", "--cluster-secret", one)
    with Group(etcd, 1, "--cluster", "secret", "--cluster-secret", other) as group:
        assert client(group.leader()).set("a", "1")
    done, shown = larder(etcd, "set-secret", "secret", "--none")
    assert done and "has no secret" in shown, shown
    assert "has no secret: omit" in refusal(etcd, "n1", "--cluster", "secret", "--cluster-secret", one)


def test_a_cluster_stays_itself_when_etcd_loses_its_keys():
    """Running nodes restore the identity, and a fresh node can join them. The nodes do not change an etcd that contains
    another cluster of this name."""
    with Etcd() as etcd, Group(etcd, 2, "--doubt", "serve") as group:
        leader = group.leader()
        client(leader).set("a", "1")
        etcd.call("/v3/kv/deleterange", ALL_KEYS)
        third = group.start("n3")
        group.wait_until_in_sync()
        assert client(third).get("a") == b"1"
        identity = encode("/larder/1/demo/identity")
        value = encode('{"identity":"%032x","secret":null}' % 7)
        # Uses one transaction, so that no node restores its identity between the two changes.
        etcd.call("/v3/kv/txn", {"success": [
            {"requestDeleteRange": ALL_KEYS}, {"requestPut": {"key": identity, "value": value}},
        ]})  # fmt: skip
        for node in group:
            wait_until(lambda node=node: "another cluster has this name" in node.output(), "the reason")
        assert client(group.leader()).get("a") == b"1"
        found = etcd.call("/v3/kv/range", ALL_KEYS)["kvs"]
        assert [(one["key"], one["value"]) for one in found] == [(identity, value)]


def test_a_node_follows_no_leader_of_another_cluster_with_the_same_name():
    """Even if a record names a process of another cluster, for example after the restore of a backup, no items are
    lost."""
    with Etcd() as one, Etcd() as other, Group(one, 1) as group, Group(other, 1, prefix="m") as strangers:
        node, stranger = group.leader(), strangers.leader()
        client(node).set("a", "1")
        found = other.call("/v3/kv/range", {**ALL_KEYS, "key": encode("/larder/1/demo/")})["kvs"]
        # After the copy, the first node sees the leader, the addresses and the lease of the other cluster.
        copied = [key for key in found if decode(key["key"]).split("/")[4] in ("groups", "live", "nodes")]
        assert len(copied) == 3
        one.call("/v3/kv/txn", {"success": [
            {"requestPut": {"key": key["key"], "value": key["value"]}} for key in copied
        ]})  # fmt: skip
        wait_until(lambda: "another cluster of the same name" in node.output(), "the reason")
        assert "another cluster of the same name" in stranger.output()
        assert int(node.stats()["curr_items"]) == 1


def test_a_node_whose_name_was_taken_exits(etcd):
    """If a node can no longer reach etcd, it loses its lease. If another process then takes its name, the node exits
    when it reaches etcd again."""
    with Group(etcd, 3, "--cluster", "taken") as group:
        former = group.leader()
        client(former).set("a", "1")
        wait_for_same_keys(group)
        former.signal(signal.SIGSTOP)
        wait_until(lambda: any(node.leads() for node in group if node is not former), "another leader")
        second = group.start(former.name)
        # The second process answers only after it has registered the name.
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
