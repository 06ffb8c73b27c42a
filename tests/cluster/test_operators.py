"""`larder cluster`: nodes execute operator requests, or reject them with a reason."""

import json
import signal

import pytest

from certificates import Authority
from group import Client, Etcd, Group, Node, client, larder, wait_for_same_keys
from replicas import ask
from server import Server, wait_until

pytestmark = pytest.mark.larder


def test_leadership_transfer_without_errors_or_full_sync(etcd):
    with Group(etcd, 3, "--cluster", "over") as group:
        old, others = group.leader(), group.followers()
        assert larder(etcd, "transfer-leadership", "over", old.name) == (True, f"{old.name} already leads")
        assert larder(etcd, "transfer-leadership", "over", "nobody") == (
            False,
            f"larder: leadership stays with {old.name}: nobody is not in sync",
        )
        copies = [node.stats("replication")["full_syncs_received"] for node in group]
        with Client(others[0], "a") as a, Client(old, "b") as b:
            for round in range(4):
                # Transfers leadership to each node by name, and then to any node.
                to = [others[1].name, old.name, others[0].name, None][round]
                epoch = int(group.leader().seen()["epoch"])
                done, said = larder(etcd, "transfer-leadership", "over", *([to] if to else []))
                assert done and said.endswith(f" leads in epoch {epoch + 1}"), said
                wait_until(lambda: int(group.leader().seen()["epoch"]) == epoch + 1, "the next leader")
                assert to in (None, group.leader().name)
                group.wait_until_in_sync()
        assert a.early_faults == [] and b.early_faults == []
        assert [node.stats("replication")["full_syncs_received"] for node in group] == copies
        wait_for_same_keys(group)


def test_the_ack_mode_is_set_for_the_group(etcd):
    with Group(etcd, 2, "--cluster", "set", "--ack", "none") as group:
        leader = group.leader()
        assert client(leader).set("a", "1")
        assert leader.seen()["held"] == "0"
        assert larder(etcd, "set", "set", "--ack", "writes") == (True, "")
        unknown = larder(etcd, "set", "set", "--group", "7", "--ack", "none")
        assert unknown == (False, "larder: cluster set has no group 7 with a leader")
        wait_until(lambda: all(node.seen()["ack"] == "writes" for node in group), "the same everywhere")
        # A second after a member stops running, the leader removes it from the in-sync members, and from then on no
        # reply waits for it. The test therefore repeats the set until a reply has waited.
        wait_until(lambda: client(leader).set("a", "2") and leader.seen()["held"] != "0", "an answer that waits")
        assert "--ack writes for all nodes" in larder(etcd, "status", "set")[1]
        assert larder(etcd, "transfer-leadership", "set")[0]
        wait_until(lambda: group.leader() is not leader, "the next leader")
        group.wait_until_in_sync()
        new = group.leader()
        wait_until(lambda: client(new).set("a", "3") and new.seen()["held"] != "0", "the next leader waits, too")
        done, said = larder(etcd, "set", "set", "--ack", "all")
        assert not done and "possible values: none, deletes, writes, default" in said
        assert larder(etcd, "set", "set", "--ack", "default") == (True, "")
        wait_until(lambda: all(node.seen()["ack"] == "none" for node in group), "--ack of the nodes again")
        assert "--ack none of the leader" in larder(etcd, "status", "set")[1]


def test_a_node_with_incomplete_data_leads_on_request(etcd):
    with Group(etcd, 2, "--cluster", "promoted") as group:
        leader, follower = group.leader(), group.followers()[0]
        assert client(leader).set("old", "1")
        wait_for_same_keys(group)
        refused = larder(etcd, "promote", "promoted", follower.name, "--unclean")
        assert not refused[0] and f"leader {leader.name} has a lease at etcd: use transfer-leadership" in refused[1]
        follower.signal(signal.SIGSTOP)
        wait_until(lambda: leader.seen()["in_sync"].split() == [leader.name], "the leader alone")
        # Stores more than the socket buffers hold, because the follower applies the content of the buffers when it
        # resumes.
        for number in range(20):
            assert client(leader).set(f"much{number}", "v" * 900_000)
        assert client(leader).set("lost", "1")
        group.kill(leader)
        follower.signal(signal.SIGCONT)
        away = f"group 0: {leader.name} leads in epoch 1, but is not alive"
        wait_until(lambda: away in larder(etcd, "status", "promoted")[1], "the end of the lease")
        assert ask(follower, b"mg old v\r\n", b"\r\n") == b"SERVER_ERROR no leader\r\n"
        done, said = larder(etcd, "promote", "promoted", follower.name)
        assert not done and "--unclean" in said
        away = larder(etcd, "promote", "promoted", leader.name, "--unclean")
        assert away == (False, f"larder: {leader.name} is not alive according to etcd")
        done, said = larder(etcd, "promote", "promoted", follower.name, "--unclean")
        assert done and said.startswith(f"{follower.name} leads in epoch "), said
        wait_until(follower.leads, "the follower leads")
        assert client(follower).get("old") == b"1", "it keeps what it has"
        assert client(follower).get("lost") is None


def test_a_node_is_ready_when_it_has_all_items(etcd):
    with Group(etcd, 2, "--cluster", "ready") as group:
        for node in group:
            assert larder(etcd, "ready", "ready", node.name) == (True, f"{node.name} is in sync")
        follower = group.followers()[0]
        follower.signal(signal.SIGSTOP)
        wait_until(lambda: len(group.leader().seen()["in_sync"].split()) == 1, "the leader alone")
        assert not larder(etcd, "ready", "ready", follower.name)[0]
        assert not larder(etcd, "ready", "ready", "nobody")[0]
    assert larder(etcd, "ready", "none", "n1") == (False, "larder: cluster none has no group 0 with a leader")


def test_a_leader_counts_as_synced_and_has_no_lag(etcd):
    with Group(etcd, 2, "--cluster", "synced") as group:
        old, new = group.leader(), group.followers()[0]
        assert [node.stats("replication")["synced"] for node in group] == ["1", "1"]
        assert larder(etcd, "transfer-leadership", "synced")[0]
        wait_until(new.leads, "the next leader")
        # The new leader's link is down. Its statistic `link_lag` still shows the lag from the old leader's last
        # message.
        assert new.stats("replication")["link_lag"] == "0.000000"
        wait_until(lambda: old.stats("replication")["synced"] == "1", "the old leader follows")


def status(etcd, cluster):
    done, said = larder(etcd, "status", cluster, "--json")
    assert done, said
    [group] = json.loads(said)["groups"]
    return group, {node["name"]: node for node in group["nodes"]}


def test_the_status_uses_tls_and_a_login(etcd, tmp_path):
    authority = Authority(tmp_path)
    authority.issue("node", "DNS:node.test")
    for name, text in {"secret": "a secret of the cluster\n", "logins": "one:word\n", "other": "one:words\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    files = f"ssl_chain_cert={tmp_path}/ca-node.pem,ssl_key={tmp_path}/ca-node.key"
    options = ["--cluster", "closed", "--cluster-secret", f"{tmp_path}/secret", "-Y", f"{tmp_path}/logins", "-Z", "-o", files]

    def shown(*words):
        done, said = larder(etcd, "status", "closed", "--json", *words)
        return json.loads(said)["groups"][0]["nodes"][0] if done else said

    trust = ["--tls", "--tls-ca", f"{tmp_path}/ca.pem", "--tls-server-name", "node.test"]
    login = ["--password", f"{tmp_path}/logins"]
    with Node(etcd, "n1", *options):
        wait_until(lambda: isinstance(shown(), dict) and shown()["state"] == "leader", "a leader")
        assert shown(*trust, *login)["version"]
        assert shown()["stats_error"] == "the node requires TLS: set --tls"
        assert shown(*trust)["stats_error"] == "the node requires a login: set --password"
        assert "login refused" in shown(*trust, "--password", f"{tmp_path}/other")["stats_error"]
        wrong = shown(*trust[:-1], "other.test", *login)["stats_error"]
        assert "is not for other.test" in wrong, wrong
        assert "--tls: " in shown("--tls", "--tls-ca", f"{tmp_path}/none")
        assert "must contain NAME:PASSWORD" in shown("--password", f"{tmp_path}/secret")


def test_the_status_shows_lag_memory_and_version_of_reachable_nodes(etcd):
    with Group(etcd, 3, "--cluster", "shown", "--ack", "deletes") as group:
        shown, nodes = status(etcd, "shown")
        assert (shown["leader"], shown["ack"], shown["ack_for_all_nodes"]) == (group.leader().name, "deletes", False)
        assert sorted(nodes) == sorted(group.nodes)
        for node in nodes.values():
            assert 0 <= node["lag_seconds"] < 10 and node["version"] and node["stats_error"] is None
            assert 0 < node["memory_bytes"] < node["memory_limit_bytes"] == 64 << 20
        text = larder(etcd, "status", "shown")[1]
        assert text.count(" of 64.0 MiB  version ") == 3 and "  --ack deletes of the leader" in text
        paused, killed = group.followers()
        paused.signal(signal.SIGSTOP)
        group.kill(killed)
        _, nodes = status(etcd, "shown")
        assert nodes[paused.name]["stats_error"] == "no reply within 3 s"
        assert "refused" in nodes[killed.name]["stats_error"]
        assert nodes[group.leader().name]["version"]
        with Server(port=killed.port):
            _, nodes = status(etcd, "shown")
            assert nodes[killed.name]["stats_error"] == "a server outside of clusters has this address"


def test_a_lost_node_is_forgotten(etcd):
    with Group(etcd, 2, "--cluster", "forget") as group:
        leader, follower = group.leader(), group.followers()[0]
        assert leader.seen()["members"] == "2"
        refused = larder(etcd, "forget", "forget", follower.name)
        assert refused == (False, f"larder: {follower.name} is alive according to etcd: stop it first")
        group.kill(follower)
        wait_until(lambda: larder(etcd, "forget", "forget", follower.name)[0], "the end of the lease")
        assert sorted(status(etcd, "forget")[1]) == [leader.name]
        wait_until(lambda: leader.seen()["members"] == "1", "one member")
        group.start(follower.name)
        group.wait_until_in_sync()
        assert leader.seen()["members"] == "2", "a node that starts again is a member again"


def test_statistics_and_metrics_show_the_requests_to_etcd():
    with Etcd() as etcd, Group(etcd, 2, "--cluster", "watched", "--metrics-listen", "127.0.0.1:0") as group:
        leader, follower = group.leader(), group.followers()[0]
        seen = leader.seen()
        assert int(seen["etcd_requests"]) > 0 and float(seen["etcd_time"]) > 0
        assert float(seen["etcd_success_age"]) < 5
        metrics = leader.metrics()
        names = f'cluster="watched",group="0",node="{leader.name}",leader="{leader.name}"'
        assert metrics[f"larder_cluster_info{{{names}}}"] == 1
        assert metrics["larder_cluster_members"] == 2
        lag = f'larder_replication_follower_lag_seconds{{follower="{follower.name}",host="127.0.0.1"}}'
        assert metrics[lag] < 10
        assert metrics["larder_replication_full_syncs_sent_total"] == 1
        failures = int(leader.seen()["etcd_failures"])
        etcd.kill()
        wait_until(lambda: int(leader.seen()["etcd_failures"]) > failures, "failed requests")
        wait_until(lambda: leader.metrics()["larder_etcd_success_age_seconds"] > 1, "the age of the last success")
