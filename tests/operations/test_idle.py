"""Memory of idle connections. `idle.py` measures more connections, and latencies."""

import pytest

from idle import bytes_per_idle, raise_descriptor_limit

IDLE = 1000
BYTES_MAX = 4096


@pytest.mark.larder
@pytest.mark.parametrize("threads", ["1", "4"])
def test_an_idle_connection_takes_little_memory(start, threads):
    raise_descriptor_limit(IDLE)
    with start("-t", threads, "-c", str(2 * IDLE)) as server:
        assert bytes_per_idle(server, IDLE) <= BYTES_MAX
