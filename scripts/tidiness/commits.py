"""Checks the subjects of the commits since the last release: `area: imperative`, at most 72 characters."""

import re
import subprocess
import sys

from texts import ROOT

# The last commit without this check. Until there is a release, the check covers the commits after it.
START = "77653c0f26f64327ae7b7c727d426c8ead4c08ee"
SUBJECT_LEN_MAX = 72
AREAS = {
    "build", "workspace", "docs", "tests", "scripts", "fuzz", "deploy", "ci", "python", "ruby", "c", "clients", "measure",
    "structure", "resp",
}
SUBJECT = re.compile(r"^([a-z0-9-]+): [a-z0-9`-]")


def git(*words):
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)


def areas():
    crates = [path.name for folder in ("crates", "clients", "measure", "tests") for path in (ROOT / folder).glob("larder-*")]
    return AREAS | {name.removeprefix("larder-") for name in crates}


def main():
    release = git("describe", "--tags", "--abbrev=0", "--match", "v*").stdout.strip()
    start = release or START
    if git("merge-base", "--is-ancestor", start, "HEAD").returncode != 0:
        if git("rev-parse", "--is-shallow-repository").stdout.strip() == "true" or not (ROOT / ".git").exists():
            return 0
        print(f"commits.py: {start} is no ancestor of HEAD: set START to the commit that the check starts after")
        return 1
    known, failed = areas(), False
    for line in git("log", "--no-merges", "--format=%h %s", f"{start}..HEAD").stdout.splitlines():
        commit, subject = line.split(" ", 1)
        if subject.startswith("Release "):
            continue
        found = SUBJECT.match(subject)
        if len(subject) > SUBJECT_LEN_MAX or not found or found[1] not in known:
            print(f"{commit}: “{subject}”: write `area: imperative` in {SUBJECT_LEN_MAX} characters; areas:"
                  f" {', '.join(sorted(known))}")
            failed = True
    return failed


if __name__ == "__main__":
    sys.exit(main())
