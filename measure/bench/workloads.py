"""The named workloads of `larder bench hitratio`, with larderd's targets."""

from dataclasses import dataclass

# Target in every workload: the maximum of Larder's missed bytes ÷ memcached's missed bytes.
BYTES_AIM = 1.05


@dataclass(frozen=True)
class Workload:
    """A workload's title and target. By default, `aim` is the maximum miss ratio of requests. With the `unit` "misses",
    it is the maximum number of misses among the counted requests; with "hits", the minimum number of hits."""

    title: str
    aim: float
    unit: str = "miss ratio"

    def figure(self, stats):
        """Returns the figure to compare with the target."""
        if self.unit == "miss ratio":
            return stats["misses"] / stats["requests"]
        return stats["misses"] if self.unit == "misses" else stats["requests"] - stats["misses"]

    def is_met(self, figure):
        return figure >= self.aim if self.unit == "hits" else figure <= self.aim

    def shown(self, figure):
        return f"{figure:.4f}" if self.unit == "miss ratio" else f"{figure:,}"

    def shown_aim(self):
        sign = "≥" if self.unit == "hits" else "≤"
        return f"{sign} {self.aim:,}" if self.aim > 1 else f"{sign} {self.aim:.3f}"


# The first four targets are the miss ratios that larderd had before it separated items by size.
WORKLOADS = {
    "zipf": Workload("Zipf 1.0", 0.275),
    "scan": Workload("Zipf 0.9 with scans", 0.501),
    "drift": Workload("drifting Zipf 1.0", 0.339),
    "one-hit": Workload("Zipf 0.9, 30 % one-hit", 0.569),
    "log-normal": Workload("log-normal sizes, median 230 B, σ 1.3, Zipf 0.9", 0.385),
    "log-uniform": Workload("log-uniform sizes, 60 B to 1 MB, uniform keys", 0.41),
    "log-uniform-zipf": Workload("log-uniform sizes, 60 B to 1 MB, Zipf 0.9", 0.19),
    "log-normal-1k": Workload("log-normal sizes, median 1 KiB, σ 2, uniform keys", 0.52),
    "log-normal-1k-zipf": Workload("log-normal sizes, median 1 KiB, σ 2, Zipf 0.9", 0.21),
    "twice": Workload("every key twice, 40,000 new keys apart", 0.53),
    "half-twice": Workload("half keys requested twice, half Zipf 1.0", 0.46),
    "sessions": Workload("sessions of 2 to 4 requests", 0.34),
    "half-sessions": Workload("half sessions, half Zipf 1.0", 0.35),
    "large-popular": Workload("popular keys of 20 KB, the rest of 300 B", 0.42),
    "small-one-hit": Workload("half one-hit of 60 B, half Zipf 0.9 of 4 KiB", 0.68),
    "large-one-hit": Workload("3 % one-hit of 200 KB, Zipf 0.9 of 500 B", 0.36),
    "old-then-loop": Workload("11 KiB keys read once, then a loop over 3 KiB", 0.12),
    "old-then-new": Workload("5,100 new keys held after old ones were read", 5_100, "hits"),
    "new-ranks": Workload("500,000 requests after all ranks changed", 145_000, "misses"),
}

# The workloads of `scripts/bench --quick`: the most important ones, which take a fraction of the time.
QUICK = (
    "zipf",
    "log-uniform-zipf",
    "log-normal-1k-zipf",
    "twice",
    "half-twice",
    "half-sessions",
    "old-then-loop",
    "old-then-new",
)
