"""Measures cold builds of larderd with different features: their duration, the size of the binary, and the number of
dependencies."""

import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from bench.servers import ROOT

# Each build has all features of the previous builds.
FEATURES = {"no features": "", "dashmap, moka, metrics": "dashmap,moka,metrics", "http": "dashmap,moka,http",
            "grpc, the default": "dashmap,moka,grpc"}  # fmt: skip


def measure():
    subprocess.run(["cargo", "fetch", "--locked"], cwd=ROOT, check=True)
    return {name: build(features) for name, features in FEATURES.items()}


def build(features):
    """Builds larderd. Returns the duration in seconds, the size of the stripped binary in bytes, and the number of
    third-party crates."""
    with tempfile.TemporaryDirectory(prefix="larder-build-") as target:
        command = ["cargo", "build", "-q", "--release", "--locked", "--offline", "--no-default-features", "--features", features,
                   "-p", "larder-server", "--bin", "larderd", "--target-dir", target]  # fmt: skip
        start_time = time.monotonic()
        subprocess.run(command, cwd=ROOT, check=True)
        took = time.monotonic() - start_time
        binary, bare = Path(target) / "release" / "larderd", Path(target) / "bare"
        shutil.copy(binary, bare)
        subprocess.run(["strip", bare], check=True)
        return {"secs": took, "bytes": bare.stat().st_size, "crates": crates(features)}


def crates(features):
    """Returns the number of third-party crates that the build compiles."""
    command = ["cargo", "tree", "--locked", "--offline", "-p", "larder-server", "--no-default-features", "--features", features,
               "--prefix", "none", "-e", "normal,build", "--no-dedupe"]  # fmt: skip
    lines = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    return len({" ".join(line.split()[:2]) for line in lines if line and not line.startswith("larder-")})
