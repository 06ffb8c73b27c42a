"""Provides files of Debian packages to tests, without installing the packages."""

import fcntl
import subprocess

from server import ROOT


def apt(*arguments, cwd=None):
    return subprocess.run(["apt-get", "-q", *arguments], cwd=cwd, check=True, capture_output=True, text=True).stdout


def once(name, make):
    """Returns a folder that `make` fills. Calls `make` only if no earlier run has filled the folder, and only in one
    process at a time."""
    folder = ROOT / "target" / "suites" / name
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            make(folder)
            (folder / "complete").touch()
    return folder


def unpacked(name, packages):
    """Returns a folder with the files of these packages, in the versions of the installed release."""

    def make(folder):
        apt("download", *packages, cwd=folder)
        for package in folder.glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, folder / "root"], check=True)

    return once(name, make) / "root"


def source(package, release):
    """Returns a folder with the unpacked source archive of a package in this release."""

    def make(folder):
        for part in ["lists/partial", "cache/archives/partial"]:
            (folder / part).mkdir(parents=True, exist_ok=True)
        sites = apt("indextargets", "--format", "$(ORIGIN) $(REPO_URI)", "Created-By: Packages")
        site = next(line.split()[1] for line in sites.splitlines() if line.startswith("Debian "))
        (folder / "sources.list").write_text(f"deb-src {site} {release} main\n")
        options = {
            "Dir::Etc::sourcelist": folder / "sources.list",
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::State::lists": folder / "lists",
            "Dir::Cache": folder / "cache",
        }
        options = [f"-o{option}={value}" for option, value in options.items()]
        apt(*options, "update", cwd=folder)
        apt(*options, "source", "--download-only", "--tar-only", package, cwd=folder)
        archive = next(folder.glob(f"{package}_*.orig.tar.*"))
        (folder / "source").mkdir(exist_ok=True)
        subprocess.run(["tar", "-xf", archive, "-C", folder / "source", "--strip-components", "1"], check=True)

    return once(name=package, make=make) / "source"
