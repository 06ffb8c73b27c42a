"""Installs and starts the drivers of client libraries. docs/client-benchmarks.md defines the interface of a driver."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from typing import Callable

from bench.servers import LARDER, ROOT

SOURCES = ROOT / "measure/bench/clients"
BUILT = ROOT / "target/clients"


class Missing(Exception):
    """The client cannot be installed on this machine."""


@dataclass(frozen=True)
class Client:
    name: str
    language: str
    # A function that installs the driver with its dependencies and returns the driver's command.
    install: Callable[[], list]
    # The crate that a driver in Rust measures. Its version is in Cargo.lock. None if the driver's command prints the
    # version with `--version`.
    crate: str | None = None
    # The driver's mode in measurements of the mode `pool`.
    pool: str = "pool"

    def version(self, command):
        if self.crate:
            lock = (SOURCES / "rust/Cargo.lock").read_text()
            return re.search(f'name = "{self.crate}"\nversion = "(.*)"', lock)[1]
        if self.install is larder:
            command = [LARDER]
        return run([*command, "--version"]).split()[-1]

    @property
    def is_interpreted(self):
        """Returns whether the language's threads share an interpreter lock."""
        return self.language in ("Python", "Ruby")


def run(command, **options):
    try:
        done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, **options)
    except OSError as error:
        raise Missing(str(error)) from None
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "it failed").splitlines()[-1]
        raise Missing(f"{command[0]}: {last}")
    return done.stdout


def debian(*packages):
    """Installs these Debian packages, unless they are installed."""
    def is_installed(package):
        status = subprocess.run(["dpkg-query", "-W", "-f=${Status}", package], capture_output=True, text=True)
        return " installed" in status.stdout

    missing = [package for package in packages if not is_installed(package)]
    if missing:
        as_root = [] if os.getuid() == 0 else ["sudo"]
        run([*as_root, "apt-get", "update", "-q"])
        run([*as_root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-q", "-y", "--no-install-recommends", *missing])


def larder():
    return [LARDER, "bench", "clients", "--csv"]


def python(package, *debian_packages):
    def install():
        debian("python3-venv", *debian_packages)
        folder = BUILT / "python"
        if not (folder / "bin/pip").exists():
            run(["python3", "-m", "venv", "--clear", folder])
        pip = [folder / "bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        run([*pip, "-c", SOURCES / "python/requirements.txt", package])
        return [folder / "bin/python", SOURCES / "python/driver.py", package]

    return install


def larder_python():
    command = python("./clients/python")()
    return [*command[:-1], "larder-client"]


def larder_ruby():
    debian("ruby", "ruby-dev", "libclang-dev")
    run(["/usr/bin/ruby", "clients/ruby/extconf.rb"])
    return ["/usr/bin/ruby", SOURCES / "ruby/driver.rb", "larder"]


def dalli():
    debian("ruby", "ruby-dalli", "ruby-connection-pool")
    # Debian's gems work only with Debian's Ruby.
    return ["/usr/bin/ruby", SOURCES / "ruby/driver.rb", "dalli"]


def gomemcache():
    if not shutil.which("go"):
        raise Missing("go is not on the PATH")
    run(["go", "build", "-C", SOURCES / "go", "-o", BUILT / "go", "."])
    return [BUILT / "go", "gomemcache"]


def rust(client):
    def install():
        target = BUILT / "rust"
        run(["cargo", "build", "-q", "--release", "--locked", "--manifest-path", SOURCES / "rust/Cargo.toml", "--target-dir", target])
        return [target / "release/larder-bench-clients", client, "--csv"]

    return install


def libmemcached():
    debian("gcc", "libc6-dev", "libmemcached-dev")
    BUILT.mkdir(parents=True, exist_ok=True)
    driver = BUILT / "libmemcached"
    run(["gcc", "-O2", "-o", driver, SOURCES / "c/driver.c", "-lmemcached", "-lmemcachedutil", "-lpthread"])
    return [driver, "libmemcached"]


# Add a client here.
CLIENTS = [
    Client("larder", "Rust", larder, pool="shared"),
    Client("larder-pool", "Rust", larder),
    Client("larder-tokio", "Rust", rust("larder-tokio"), crate="larder-client", pool="shared"),
    Client("larder-python", "Python", larder_python),
    Client("larder-ruby", "Ruby", larder_ruby),
    Client("memcache-exp", "Rust", rust("memcache-exp"), crate="memcache"),
    Client("memcache", "Rust", rust("memcache"), crate="memcache"),
    Client("async-memcached", "Rust", rust("async-memcached"), crate="async-memcached"),
    Client("gomemcache", "Go", gomemcache),
    Client("libmemcached", "C", libmemcached),
    Client("pymemcache", "Python", python("pymemcache")),
    Client("pylibmc", "Python", python("pylibmc", "gcc", "python3-dev", "libmemcached-dev", "zlib1g-dev")),
    Client("libmc", "Python", python("libmc")),
    Client("meta-memcache", "Python", python("meta-memcache")),
    Client("python-memcached", "Python", python("python-memcached")),
    Client("dalli", "Ruby", dalli),
]
