"""Other programs can read the result files of `larder bench`."""

import json
import subprocess

from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader

from bench import LARDER


def test_interval_logs_are_those_of_hdrhistogram(start, tmp_path):
    prefix, report = tmp_path / "latency", tmp_path / "report.json"
    with start() as server:
        subprocess.run(
            [
                str(LARDER), "bench", "-s", server.host, "-p", str(server.port), "-q", "-t", "2", "-c", "2",
                "--rate=1000", "--test-time=3", "--hide-histogram",
                f"--hdr-file-prefix={prefix}", f"--json-out-file={report}",
            ],
            check=True, stdout=subprocess.DEVNULL, timeout=120,
        )  # fmt: skip
    run = json.loads(report.read_text())["runs"][0]
    whole = HdrHistogram(1, 3_600_000_000_000, 3)
    log = HistogramLogReader(f"{prefix}_run_1.hlog", whole)
    seconds = []
    while interval := log.get_next_interval_histogram():
        seconds.append(interval)
        whole.add(interval)
    log.close()
    assert [second.get_total_count() for second in seconds] == [
        second["requests"] for second in run["seconds_of_run"]
    ]
    assert whole.get_total_count() == run["commands"]["total"]["requests"]
    latency = run["commands"]["total"]["latency"]
    for percentile, name in [(50, "p50"), (99, "p99"), (99.9, "p99_9"), (100, "max")]:
        microseconds = whole.get_value_at_percentile(percentile) / 1000
        # Both programs round latencies to three significant digits.
        assert abs(microseconds - latency[name]) <= 0.002 * latency[name], name
    begins = [second.get_start_time_stamp() for second in seconds]
    assert begins == [begins[0] + 1000 * number for number in range(len(begins))]
