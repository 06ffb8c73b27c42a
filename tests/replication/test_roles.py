"""`ROLE` and `INFO replication`: the replication role, as redis-py parses it."""

import pytest
import redis

from replicas import Leader, ask, is_following, wait_for_equality
from server import Server, wait_until

pytestmark = pytest.mark.larder


@pytest.fixture(params=[2, 3])
def connect(request):
    def connect(server):
        return redis.Redis(port=server.resp_port, protocol=request.param, decode_responses=True)

    return connect


def follower(port, *options, **more):
    return Server(options=["--follow", f"127.0.0.1:{port}", "-v", *options], **more)


def test_a_server_without_replication_is_a_master(connect):
    with Server(resp=True) as server, connect(server) as client:
        assert client.role() == ["master", 0, []]
        assert client.info("replication") == {"role": "master", "connected_slaves": 0}


def test_leaders_and_followers(connect):
    with Leader(resp=True) as leader, connect(leader) as to_leader:
        shown = to_leader.info("replication")
        assert shown == {"role": "master", "connected_slaves": 0, "master_repl_offset": 0}
        assert to_leader.role() == ["master", 0, []]
        with follower(leader.replication_port, resp=True) as server, connect(server) as to_follower:
            to_leader.mset({f"k{number}": number for number in range(500)})
            wait_for_equality(leader, server)
            offset = to_leader.info("replication")["master_repl_offset"]
            assert offset > 500

            def is_there():
                slaves = to_leader.info("replication")
                link = to_follower.info()
                return slaves["slave0"]["offset"] == link["slave_repl_offset"] == offset

            wait_until(is_there, "the same offset")
            shown = to_leader.info("replication")
            assert shown.pop("slave0") == {
                "ip": "127.0.0.1",
                "port": server.port,
                "state": "online",
                "offset": offset,
                "lag": 0,
            }
            assert shown == {"role": "master", "connected_slaves": 1, "master_repl_offset": offset}
            assert to_leader.role() == ["master", offset, [["127.0.0.1", str(server.port), str(offset)]]]

            shown = to_follower.info("replication")
            assert shown.pop("master_last_io_seconds_ago") <= 1
            assert shown == {
                "role": "slave",
                "master_host": "127.0.0.1",
                "master_port": leader.replication_port,
                "master_link_status": "up",
                "master_sync_in_progress": 0,
                "slave_repl_offset": offset,
                "slave_read_only": 1,
                "connected_slaves": 0,
                "master_repl_offset": offset,
            }
            assert to_follower.role() == ["slave", "127.0.0.1", leader.replication_port, "connected", offset]
            with pytest.raises(redis.ReadOnlyError):
                to_follower.set("a", 1)


def test_a_lost_leader(connect):
    leader = Leader(resp=True)
    with follower(leader.replication_port, resp=True) as server, connect(server) as client:
        ask(leader, b"set a 0 0 1\r\n1\r\n", b"\r\n")
        wait_for_equality(leader, server)
        wait_until(lambda: client.info()["slave_repl_offset"] > 0, "an offset")
        offset = client.info()["slave_repl_offset"]
        leader.process.kill()
        leader.stop()
        wait_until(lambda: client.info()["master_link_status"] == "down", "the loss of the leader")
        shown = client.info("replication")
        assert 0 <= shown["master_link_down_since_seconds"] <= 60 and shown["slave_repl_offset"] == offset
        assert client.role()[3:] == ["connecting", offset]


def test_the_role_of_a_follower_with_followers(connect):
    with Leader() as first, Leader(options=["--follow", f"127.0.0.1:{first.replication_port}"], resp=True) as second:
        with follower(second.replication_port, resp=True) as third:
            ask(first, b"set a 0 0 1\r\n1\r\n", b"\r\n")
            wait_until(lambda: is_following(second) and is_following(third), "copies")
            wait_for_equality(first, third)
            shown = connect(second).info("replication")
            assert (shown["role"], shown["connected_slaves"]) == ("slave", 1)
            assert shown["slave0"]["port"] == third.port and shown["slave0"]["state"] == "online"
            assert connect(third).role()[:3] == ["slave", "127.0.0.1", second.replication_port]


def test_hello_reports_the_role(connect):
    with Leader(resp=True) as leader, follower(leader.replication_port, resp=True) as server:
        hello = connect(leader).execute_command("HELLO")
        assert "master" in (hello.values() if isinstance(hello, dict) else hello)
        hello = connect(server).execute_command("HELLO")
        assert "replica" in (hello.values() if isinstance(hello, dict) else hello)
