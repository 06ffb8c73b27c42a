"""Reads the statistics that the Prometheus `memcached_exporter` reads, and applies its rules.

The exporter requests `stats`, `stats slabs`, `stats items` and `stats settings`. It reports the server as down
(`memcached_up 0`) if a value is not the expected number, word or time, and omits metrics whose statistics are missing.
The tests therefore check that the exporter can parse every value, and that larderd provides every metric that Debian's
memcached provides.

The tests do not run the exporter itself. The names of the statistics are from the exporter's source.
`go/exporter_test.go` tests the exporter's client library."""

from server import wait_until

OPERATIONS = "get delete incr decr cas touch".split()

GENERAL = """
    uptime time cas_badval cmd_flush cmd_set bytes limit_maxbytes curr_items total_items bytes_read
    bytes_written curr_connections total_connections rejected_connections conn_yields
    listen_disabled_num evictions reclaimed store_too_large store_no_memory lru_crawler_starts
    direct_reclaims crawler_items_checked crawler_reclaimed moves_to_cold moves_to_warm
    moves_within_lru accepting_conns
""".split() + [f"{verb}_{end}" for verb in OPERATIONS for end in ("hits", "misses")]

TIMES = ["rusage_user", "rusage_system"]

ITEMS = """
    number age hits_to_hot hits_to_warm hits_to_cold hits_to_temp crawler_reclaimed evicted
    evicted_nonzero evicted_time evicted_unfetched expired_unfetched outofmemory reclaimed
    tailrepairs mem_requested moves_to_cold moves_to_warm moves_within_lru number_hot number_warm
    number_cold number_temp age_hot age_warm
""".split()

SLABS = """
    cas_badval cmd_set chunk_size chunks_per_page total_pages total_chunks used_chunks free_chunks
    free_chunks_end
""".split() + [f"{verb}_hits" for verb in OPERATIONS]

SETTINGS = """
    maxconns lru_crawler_sleep lru_crawler_tocrawl hot_lru_pct warm_lru_pct hot_max_factor
    warm_max_factor
""".split()

BOOLEANS = ["lru_crawler", "lru_maintainer_thread"]


def seconds(text):
    whole, micros = text.split(".")
    return int(whole) + int(micros) / 1e6


def boolean(text):
    return {"yes": 1, "no": 0}[text]


def classes(page, prefix=""):
    """Returns the statistics of a page by slab class, such as {"1": {"number": "7"}}. Statistics without a class have
    the key ""."""
    found = {"": {}}
    for name, value in page.items():
        number, _, rest = name.removeprefix(prefix).partition(":")
        if rest:
            found.setdefault(number, {})[rest] = value
        else:
            found[""][name] = value
    return found


def scrape(server):
    """Returns the value of each metric. Raises an exception where the exporter would fail."""
    metrics = {}

    def take(page, names, read=float, label=""):
        metrics.update({(label, name): read(page[name]) for name in names if name in page})

    general, settings = server.stats(), server.stats("settings")
    take(general, GENERAL)
    take(general, TIMES, seconds)
    take(settings, SETTINGS)
    take(settings, BOOLEANS, boolean)
    slabs = classes(server.stats("slabs"))
    take(slabs.pop(""), ["active_slabs", "total_malloced"])
    for number, page in slabs.items():
        take(page, SLABS, label=f"slab {int(number)}")
    for number, page in classes(server.stats("items"), "items:").items():
        take(page, ITEMS, label=f"items {int(number)}" if number else "")
    return metrics


def use(server):
    """Stores an item in each of two slab classes, and sends a request of each operation."""
    requests = [
        b"set small 0 0 1\r\n1\r\n", b"set large 0 100 2000\r\n" + b"x" * 2000 + b"\r\n",
        b"get small absent\r\n", b"incr small 1\r\n", b"decr small 1\r\n", b"incr absent 1\r\n",
        b"touch large 50\r\n", b"cas small 0 0 1 1\r\n2\r\n", b"delete absent\r\n", b"quit\r\n",
    ]  # fmt: skip
    with server.connect() as sock:
        sock.sendall(b"".join(requests))
        while sock.recv(4096):
            pass


def test_the_exporter_gets_all_metrics_of_memcached(start, engine, memcached):
    with start(engine=engine) as server:
        use(server)
        ours = scrape(server)
    use(memcached)
    theirs = scrape(memcached)
    # The comparison is meaningful only with two classes and most of the statistics.
    assert len(theirs) > 100
    assert set(theirs) - set(ours) == set()


def test_metrics_count_the_requests(start, engine):
    with start(engine=engine) as server:
        use(server)
        metrics = scrape(server)
    expected = {
        "curr_items": 2, "cmd_set": 3, "get_hits": 1, "get_misses": 1, "incr_hits": 1,
        "incr_misses": 1, "decr_hits": 1, "touch_hits": 1, "cas_badval": 1, "delete_misses": 1,
        "accepting_conns": 1,
    }  # fmt: skip
    assert {name: metrics["", name] for name in expected} == expected
    numbers = [value for (_, name), value in metrics.items() if name == "number"]
    assert numbers == [1, 1]


def test_a_number_that_is_counted_up_is_seldom_a_new_item(start, engine):
    """`total_items` grows only if a number becomes longer, as in memcached."""
    with start(engine=engine) as server, server.connect() as sock, sock.makefile("rb") as replies:
        sock.sendall(b"set n 0 0 1\r\n1\r\n" + 100 * b"incr n 1\r\n")
        assert [replies.readline() for _ in range(101)][-1] == b"101\r\n"
        assert server.stats()["total_items"] == "3"


def test_flushed_items_are_soon_not_counted(start, engine):
    with start(engine=engine) as server, server.connect() as sock, sock.makefile("rb") as replies:
        sock.sendall(b"".join(b"set key-%d 0 0 1 noreply\r\n1\r\n" % n for n in range(60_000)) + b"flush_all\r\n")
        assert replies.readline() == b"OK\r\n"
        wait_until(lambda: server.stats()["curr_items"] == "0", "the removal of the flushed items")
