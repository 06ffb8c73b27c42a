"""`CLIENT TRACKING` in a cluster with several groups: clients receive messages about the items of all groups."""

import contextlib
import random
import threading
import time

import pytest
import redis
from redis.cache import CacheConfig

from group import PAUSE_SECS, Group, client
from resp_peer import ALL, Peer, push
from server import wait_until
from test_many_groups import cluster, larder

pytestmark = pytest.mark.larder

KEYS = [f"k{number}" for number in range(60)]


@pytest.fixture(autouse=True)
def close_connections():
    yield
    while Peer.opened:
        Peer.opened.pop().close()


class Reader:
    """A connection with tracking that collects the messages that it receives."""

    def __init__(self, node, *options):
        self.peer, self.received = Peer(node.resp_port, resp3=True), b""
        assert self.peer.ask(" ".join(["CLIENT TRACKING ON", *options])) == b"+OK\r\n"

    def read(self, *requests):
        self.received += self.peer.ask(*requests)

    def receive(self):
        self.received += self.peer.ask()
        return self.received

    def wait_for(self, *messages):
        wait_until(lambda: all(message in self.receive() for message in messages), "the messages")
        self.received = b""

    def expect(self, reads, change, *messages):
        """Reads items and changes them. Either the expected messages or a message about all items must arrive. A node
        can send several messages about all items after a flush, or after a change of slots or leaders. The method
        therefore repeats the reads and the change until none of these messages arrives."""

        def receives_only_messages_about_keys():
            self.received = b""
            self.read(*reads)
            change()
            wait_until(
                lambda: ALL in self.receive() or all(message in self.received for message in messages), "the messages"
            )
            return ALL not in self.received

        wait_until(receives_only_messages_about_keys, "messages about keys")
        self.received = b""


def named(keys):
    """Returns the encoding of keys in messages that contain several keys."""
    return [f"${len(key)}\r\n{key}\r\n".encode() for key in keys]


def gets(keys):
    return [f"GET {key}" for key in keys]


def test_messages_about_items_of_other_groups(etcd):
    with cluster(etcd, "near", 2, 2, resp=True) as (first, second):
        larder(etcd, "move", "near", "--to", "1")
        client(first.leader()).set_many(dict.fromkeys(KEYS, "0"))
        nodes = [*first, *second]
        for number, node in enumerate(nodes):
            writer = Peer(nodes[number - 1].resp_port)
            change = lambda: writer.ask(*(f"INCR {key}" for key in KEYS))
            reader, idle, broad = Reader(node), Reader(node), Reader(node, "BCAST", "PREFIX k1", "PREFIX x")
            reader.expect(gets(KEYS), change, *map(push, KEYS))
            broad.expect([], change, *named(key for key in KEYS if key.startswith("k1")))
            chosen = Reader(node, "OPTIN")
            chosen.expect(["CLIENT CACHING YES", "MGET " + " ".join(KEYS[:20])], change, *map(push, KEYS[:20]))
            remove = lambda: writer.ask("DEL " + " ".join(KEYS[:5]), *(f"PEXPIRE {key} 1" for key in KEYS[5:10]))
            reader.expect([*gets(KEYS[:10]), *(f"SET {key} 1" for key in KEYS[:10]), *gets(KEYS[:10])], remove, *map(push, KEYS[:10]))
            # Commands on several keys, transactions, and the rest of a pipeline also read items of both groups.
            reads = ["MGET " + " ".join(KEYS[:20]), "MULTI", "GET k20", "EXEC", "EXISTS k21 k22", "TTL k23"]
            write = lambda: client(nodes[number - 2]).set_many(dict.fromkeys(KEYS, "0"))
            reader.expect(reads, write, *map(push, KEYS[:24]))
            broad.expect([], lambda: writer.ask("SET xy 1"), push("xy"))
            reader.read("GET k50")
            writer.ask("FLUSHALL")
            reader.wait_for(ALL)
            reader.read("GET k30", "CLIENT TRACKING OFF")
            writer.ask("SET k30 1")
            time.sleep(0.1)
            assert push("k30") not in reader.receive()
            assert not idle.receive().replace(ALL, b""), "it has read nothing"
            for one in (reader, idle, broad, chosen):
                one.peer.close()
            writer.close()
        # The groups must stop tracking for clients that have disconnected.
        wait_until(lambda: all(node.stats()["tracking_prefixes"] == "0" for node in nodes), "the end of BCAST")


def test_clients_drop_their_copies_when_the_leader_of_another_group_is_lost(etcd):
    with cluster(etcd, "nearlost", 2, 3, resp=True) as (first, second):
        larder(etcd, "move", "nearlost", "--to", "1")
        node = first.followers()[0]
        reader, broad = Reader(node), Reader(node, "BCAST")
        writer, values = client(first.leader()), iter(range(1, 1 << 20))
        change = lambda: writer.set_many(dict.fromkeys(KEYS, str(next(values))))
        for lose in (second.kill, lambda leader: larder(etcd, "transfer-leadership", "nearlost", "--group", "1")):
            reader.expect(gets(KEYS), change, *map(push, KEYS))
            broad.expect([], change, *named(KEYS))
            former = second.leader()
            lose(former)
            reader.wait_for(ALL)
            broad.wait_for(ALL)
            wait_until(lambda: any(other.leads() for other in second if other is not former), "another leader")
            # The new leader sends messages about items that clients have read from it.
            reader.expect(gets(KEYS), change, *map(push, KEYS))
            broad.expect([], change, *named(KEYS))
            second.wait_until_in_sync()


def test_no_copy_stays_stale_while_slots_and_leaders_change(etcd):
    """redis-py caches items at each kind of node, while changes arrive at other nodes, slots move and leadership is
    transferred. Afterwards, no cached item differs from the stored item."""
    with cluster(etcd, "nearmoves", 2, 2, resp=True) as (first, second), contextlib.ExitStack() as stack:
        nodes, end, changes = [*first, *second], threading.Event(), [0]
        client(first.leader()).set_many(dict.fromkeys(KEYS, "0"))
        near = [redis.Redis(port=node.resp_port, protocol=3, cache_config=CacheConfig()) for node in nodes]

        def change():
            writers, dice = [client(node) for node in nodes], random.Random(1)
            while not end.is_set():
                changes[0] += 1
                dice.choice(writers).set(dice.choice(KEYS), str(changes[0]))
                time.sleep(PAUSE_SECS)

        def read(reader, seed):
            dice = random.Random(seed)
            while not end.is_set():
                reader.get(dice.choice(KEYS))
                copies[seed] = max(copies[seed], reader.get_cache().size)
                time.sleep(PAUSE_SECS)

        failed, copies = [], [0] * len(near)

        def run(work, *of):
            try:
                work(*of)
            except BaseException as fault:
                failed.append(fault)

        threads = [threading.Thread(target=run, args=(change,))]
        threads += [threading.Thread(target=run, args=(read, reader, seed)) for seed, reader in enumerate(near)]
        stack.callback(lambda: [thread.join() for thread in threads])
        stack.callback(end.set)
        for thread in threads:
            thread.start()
        for task in (
            ["move", "nearmoves", "--to", "1"], ["transfer-leadership", "nearmoves", "--group", "1"],
            ["move", "nearmoves", "--to", "0", "--count", "500"], ["transfer-leadership", "nearmoves", "--group", "0"],
            ["drain", "nearmoves", "0"],
        ):  # fmt: skip
            larder(etcd, *task)
        end.set()
        for thread in threads:
            thread.join()
        assert not failed, failed
        assert changes[0] > 100 and min(copies) > 10, copies
        items = client(first.leader()).get_many(KEYS)
        for node, reader in zip(nodes, near):
            wait_until(lambda: [reader.get(key) for key in KEYS] == [items[key] for key in KEYS], f"the items at {node.name}")
