"""Measures the costs of the interfaces other than memcached's: memcached requests while the other interfaces are idle
or scraped, RESP compared with Redis and Valkey, and HTTP compared with Pogocache and nginx. Also measures the time to
drop a tag."""

import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from bench.peer_costs import cpu_secs, first_line, known, version, wait_for
from bench.servers import LARDER, LOAD_CORE, ROOT, SERVER_CORE, free_port, on_core, output, run

PAIRS = 15
ROUNDS = 5
CONNECTIONS = 16
KEYS = 100_000
# The number of requests on each connection of `larder bench`, by pipeline depth. All requests together take about two
# seconds of the server's time.
REQUESTS = {10: 250_000, 50: 300_000}
# The kernel divides CPU time into user and system time by sampling, so small differences need longer runs.
IDLE_REQUESTS = 500_000
WRK_SECS = 2
TAGGED = 1_000_000
SIZES = {"100 B": 100, "1 MiB": 1 << 20}
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
LARDERD = [ROOT / "target/dist/larderd", "-u", "root", "-l", "127.0.0.1", "-U", 0, "-t", 1, "-m", 1024]


def measure():
    found = {"idle": idle(), "resp": resp(), "http": http(), "tags": tags()}
    found["versions"] = {"nginx": first_line(["nginx", "-v"]).rpartition("/")[2]} if shutil.which("nginx") else {}
    found["versions"] |= {server["name"]: version(server) for server in servers_of("redis", "valkey", "pogocache")}
    return found


def servers_of(*names):
    return [server for server in known() if server["name"] in names and shutil.which(server["command"][0])]


@contextmanager
def running(command, port):
    """Runs a server on its core until the end of the block. Yields its process."""
    with subprocess.Popen(on_core(SERVER_CORE, command), cwd=ROOT, **QUIET) as process:
        try:
            wait_for(port, process)
            yield process
        finally:
            process.terminate()


def place(port, protocol):
    return [LARDER, "bench", "-q", "--hide-histogram", "-P", protocol, "-s", "127.0.0.1", "-p", port, "-t", 1,
            "-c", CONNECTIONS, "--key-minimum", 1, "--key-maximum", KEYS, "-d", 100]


def cost(process, port, protocol, ratio, depth, requests=None):
    """Measures the user CPU time and the total CPU time of a request, in µs."""
    requests = requests or REQUESTS[depth]
    before = cpu_secs(process.pid)
    run(on_core(LOAD_CORE, [*place(port, protocol), "--ratio", ratio, "--pipeline", depth, "-n", requests]), **QUIET)
    took = [late - early for early, late in zip(before, cpu_secs(process.pid))]
    count = requests * CONNECTIONS
    return [1e6 * took[0] / count, 1e6 * sum(took) / count]


def fill(port, protocol):
    run(on_core(LOAD_CORE, [*place(port, protocol), "--ratio", "1:0", "--key-pattern", "P:P", "-n", "allkeys", "--pipeline", 16]), **QUIET)


def idle():
    """Measures the CPU time of memcached gets without further interfaces, with all of them idle, and with a scrape per
    second. Each round starts with another kind."""
    costs = {"off": [], "idle": [], "scraped": []}
    kinds = list(costs)
    for number in range(PAIRS):
        for kind in kinds[number % 3:] + kinds[:number % 3]:
            port, http_port, metrics_port = free_port(), free_port(), free_port()
            command = [*LARDERD, "-p", port]
            if kind != "off":
                command += ["-l", f"proto[resp]:127.0.0.1:{free_port()}", "--http-listen", http_port,
                            "--grpc-listen", free_port(), "--metrics-listen", f"127.0.0.1:{metrics_port}"]
            with running(command, port) as process:
                fill(port, "text")
                with scraping(metrics_port if kind == "scraped" else None):
                    costs[kind].append(cost(process, port, "text", "0:1", 10, IDLE_REQUESTS))
    return costs


@contextmanager
def scraping(port):
    """Scrapes the port once a second, unless it is None."""
    done = threading.Event()

    def scrape():
        while not done.is_set():
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read()
            done.wait(1)

    thread = threading.Thread(target=scrape)
    if port:
        thread.start()
    try:
        yield
    finally:
        done.set()
        if port:
            thread.join()


def resp():
    """Measures the CPU time of gets and sets over RESP, by load and server."""
    costs = {}
    for number in range(ROUNDS):
        port = free_port()
        turns = [("larder", [*LARDERD[:3], "-l", f"proto[resp]:127.0.0.1:{port}", "-U", 0, "-t", 1, "-m", 1024], port)]
        for server in servers_of("redis", "valkey"):
            port = free_port()
            turns.append((server["name"], [word.format(port=port) for word in server["command"]], port))
        for name, command, port in turns[number % len(turns):] + turns[:number % len(turns)]:
            with running(command, port) as process:
                fill(port, "resp")
                for what, ratio in (("GET", "0:1"), ("SET", "1:0")):
                    for depth in (10, 50):
                        found = cost(process, port, "resp", ratio, depth)
                        costs.setdefault(f"{what}, {depth} deep", {}).setdefault(name, []).append(found)
    return costs


def http():
    """Measures the CPU time of HTTP GETs of one value under wrk, for larderd, Pogocache, and nginx with a file. Returns
    None if wrk is not installed."""
    if not shutil.which("wrk"):
        return None
    costs = {}
    with tempfile.TemporaryDirectory(prefix="larder-http-") as folder:
        folder = Path(folder)
        folder.chmod(0o755)
        for number in range(ROUNDS):
            for size, length in SIZES.items():
                (folder / "value").write_bytes(b"v" * length)
                turns = http_servers(folder, length)
                for name, command, port, path in turns[number % len(turns):] + turns[:number % len(turns)]:
                    with running(command, port) as process:
                        url = f"http://127.0.0.1:{port}{path}"
                        if name != "nginx":
                            stored = urllib.request.Request(url, data=(folder / "value").read_bytes(), method="PUT")
                            urllib.request.urlopen(stored, timeout=30).read()
                        assert len(urllib.request.urlopen(url, timeout=30).read()) == length, name
                        costs.setdefault(size, {}).setdefault(name, []).append(wrk(process, url))
    return costs


def http_servers(folder, length):
    port = free_port()
    larder = [*LARDERD, "-p", free_port(), "-I", "2m", "--http-listen", port]
    servers = [("larder", larder, port, "/v1/keys/value")]
    # Pogocache is compared only with short values.
    for server in servers_of("pogocache") if length < 1 << 20 else ():
        port = free_port()
        servers.append(("pogocache", [word.format(port=port) for word in server["command"]], port, "/value"))
    if shutil.which("nginx"):
        port = free_port()
        settings = f"""
daemon off; master_process off; pid {folder}/pid; error_log {folder}/errors;
events {{ worker_connections 256; }}
http {{ access_log off; sendfile on; open_file_cache max=10; keepalive_requests 1000000000;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  server {{ listen 127.0.0.1:{port}; root {folder}; }} }}
"""
        (folder / "nginx.conf").write_text(settings)
        servers.append(("nginx", ["nginx", "-c", folder / "nginx.conf"], port, "/value"))
    return servers


def wrk(process, url):
    """Measures the user CPU time and the total CPU time of a request, in µs."""
    before = cpu_secs(process.pid)
    said = output(on_core(LOAD_CORE, ["wrk", "-t", 1, "-c", CONNECTIONS, "-d", f"{WRK_SECS}s", url]))
    took = [late - early for early, late in zip(before, cpu_secs(process.pid))]
    assert "Non-2xx" not in said, said
    requests = int(re.search(r"(\d+) requests in", said)[1])
    return [1e6 * took[0] / requests, 1e6 * sum(took) / requests]


def tags():
    """Measures the latencies in µs of `mt`, which drops a tag of a million items, and of `mn`, which does nothing."""
    port = free_port()
    names, took = [f"tag{n}" for n in range(7)], {"drop": [], "nothing": []}
    with running([*LARDERD, "-p", port], port), socket.create_connection(("127.0.0.1", port)) as sock:
        replies = sock.makefile("rb")
        flags = "G" + ",".join(names)

        def ask(request):
            start_time = time.perf_counter()
            sock.sendall(request)
            answer = replies.readline()
            return 1e6 * (time.perf_counter() - start_time), answer

        for first in range(0, TAGGED, 1000):
            keys = range(first, first + 1000)
            sock.sendall(b"".join(b"ms key%d 100 q %s\r\n%s\r\n" % (key, flags.encode(), b"v" * 100) for key in keys))
            assert ask(b"mn\r\n")[1] == b"MN\r\n"
        for _ in range(1000):
            ask(b"mn\r\n")
        for name in names:
            assert ask(b"mg key1\r\n")[1] == (b"HD\r\n" if name == names[0] else b"EN\r\n")
            took["nothing"] += [ask(b"mn\r\n")[0] for _ in range(100)]
            micros, answer = ask(b"mt %s\r\n" % name.encode())
            assert answer == b"HD\r\n", answer
            took["drop"].append(micros)
    return took


def ratio(costs, of, to, kind):
    """Returns the cost of `of` ÷ the cost of `to`, as the median over the rounds. `kind` is 0 for user CPU time and 1
    for all CPU time."""
    return median(one[kind] / other[kind] for one, other in zip(costs[of], costs[to]))


def verdicts(found):
    """Returns rows of the table of targets: figure, limit, result, and whether the result meets the target."""
    costs, rows = found["idle"], []
    for what, of, to, most in (("all interfaces idle ÷ off", "idle", "off", 1.02), ("a scrape a second ÷ idle", "scraped", "idle", 1.01)):
        got, all_time = ratio(costs, of, to, 0), ratio(costs, of, to, 1)
        shown = f"{got:.3f}; of all CPU time {all_time:.3f}"
        rows.append([f"user CPU of a memcached get, {what}", f"≤ {most}", shown, got <= most])
    for name in ("redis", "valkey"):
        got = {what: ratio(costs, "larder", name, 0) for what, costs in found["resp"].items() if name in costs}
        if got:
            shown = "; ".join(f"{what} {one:.2f}" for what, one in got.items())
            rows.append([f"user CPU of RESP ÷ {name}'s", "≤ 0.30", shown, max(got.values()) <= 0.30])
    for size, name, most in (("100 B", "pogocache", 1.5), ("100 B", "nginx", 1.2), ("1 MiB", "nginx", 1.2)):
        costs = (found["http"] or {}).get(size, {})
        if name in costs:
            got = ratio(costs, "larder", name, 1)
            rows.append([f"CPU of an HTTP GET of {size} ÷ {name}'s", f"≤ {most}", f"{got:.2f}", got <= most])
    drop, nothing = (median(found["tags"][what]) for what in ("drop", "nothing"))
    shown = f"{drop - nothing:.1f} µs longer than a request that does nothing, {nothing:.0f} µs"
    rows.append([f"dropping a tag of {TAGGED:,} items", "≤ 10 µs", shown, drop - nothing <= 10])
    return rows
