#!/usr/bin/env python3
"""Checks the paths in ARCHITECTURE.md, docs/internals and docs/decisions, and the lengths of these pages:
scripts/tidiness/paths.py

Fails if one of these pages names a file or folder that does not exist, in backticks or in a link, or if a page is too
long: 12,288 bytes for ARCHITECTURE.md, 10,240 for a page of docs/internals.

A path in backticks starts at the root of the repository (`crates/larder-store/src/lib.rs`, `tests/cluster/`). A shorter
name, such as `table.rs` or `stats/row.rs`, must be the end of at least one file's path."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
MAP = "ARCHITECTURE.md"
FOLDERS = ["docs/internals", "docs/decisions"]
LEN_MAX = {MAP: 12_288, "docs/internals": 10_240}
SOURCES = (".rs", ".py", ".rb", ".sh", ".c", ".h", ".toml", ".md", ".proto", ".yml", ".yaml", ".service", ".socket")

CODE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def tracked():
    """Returns all files of the repository, including files that are not committed yet."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\n")


def pages():
    """Returns the pages to check, with their paths from the root."""
    found = [MAP] + [str(path.relative_to(ROOT)) for folder in FOLDERS for path in (ROOT / folder).glob("*.md")]
    return sorted(found)


def len_max(page):
    """Returns the maximum length of a page in bytes, or None without a limit."""
    return LEN_MAX.get(page, LEN_MAX.get(str(Path(page).parent)))


def missing_path(word, files, tops):
    """Returns whether a word in backticks names a path that does not exist."""
    path = word.rstrip("/")
    if any(character in word for character in " *{}<>$…=:"):
        return False
    if path.split("/")[0] in tops and "/" in word:
        return not (ROOT / path).exists()
    if not path.endswith(SOURCES):
        return False
    return path not in files and not any(file.endswith("/" + path) for file in files)


def missing_link(target, page):
    """Returns whether a link leads to a file that does not exist."""
    if "://" in target or target.startswith("#"):
        return False
    return not (ROOT / page).parent.joinpath(target.split("#")[0]).exists()


def faults_of(page, files, tops):
    """Yields the faults of a page, one per line."""
    text = (ROOT / page).read_text()
    size = len(text.encode())
    limit = len_max(page)
    if limit is not None and size > limit:
        yield f"{page}: {size} bytes, at most {limit}"
    prose = FENCE.sub("", text)
    for word in CODE.findall(prose):
        if missing_path(word, files, tops):
            yield f"{page}: `{word}` does not exist"
    for target in LINK.findall(prose):
        if missing_link(target, page):
            yield f"{page}: the link to {target} leads nowhere"


def main():
    files = {file for file in tracked() if (ROOT / file).exists()}
    tops = {file.split("/")[0] for file in files if "/" in file}
    faults = [fault for page in pages() for fault in faults_of(page, files, tops)]
    print("\n".join(faults), end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
