#!/usr/bin/env python3
"""Checks the links of all Markdown pages of the repository: scripts/tidiness/links.py [--self-test]

A relative link must lead to a file or folder, and its anchor to a heading of that page. If any other file mentions
`docs/PAGE.md`, that page must exist. Each page of docs/ must be in docs/SUMMARY.md, except the pages of the folders in
NOT_IN_BOOK. Links to the web are not checked. Prints a line for each fault, and then exits with status 1."""

import re
import subprocess
import sys
import tempfile
import urllib.parse
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Folders of docs/ for contributors, whose pages need not be in the book.
NOT_IN_BOOK = ("internals", "decisions")
FENCE = re.compile(r"^(\s*)(`{3,}|~{3,}).*?^\1?\2\s*$", re.M | re.S)
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.S)
COMMENT = re.compile(r"<!--.*?-->", re.S)
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
DEFINITION = re.compile(r"^\s*\[[^\]]+\]:\s+(\S+)", re.M)
HEADING = re.compile(r"^ {0,3}#{1,6}\s+(.+?)\s*#*\s*$", re.M)
NAMED = re.compile(r'<a (?:id|name)="([^"]+)"')
MENTION = re.compile(r"(?<![\w/.])docs/[\w/-]+\.md(?:#[\w-]+)?")


def main():
    if "--self-test" in sys.argv:
        self_test()
    faults = check(ROOT, tracked(ROOT))
    print("\n".join(faults) or "links: no faults")
    sys.exit(bool(faults))


def tracked(root):
    """Returns all files of the repository that Git does not ignore, including new files."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, check=True)
    paths = (root / name for name in listed.stdout.decode().split("\0") if name)
    return [path for path in paths if path.is_file()]


def check(root, files):
    anchors = {}
    faults = []
    for path in files:
        if path.suffix == ".md":
            faults += page_faults(root, path, anchors)
        elif path != Path(__file__).resolve() and path.stat().st_size < 1_000_000:
            faults += mention_faults(root, path, anchors)
    return faults + list(summary_faults(root, files))


def page_faults(root, path, anchors):
    text = path.read_text()
    shown = without_code(text)
    targets = [match for pattern in (LINK, DEFINITION) for match in pattern.finditer(shown)]
    for match in targets:
        target = match[1]
        if re.match(r"[a-z][a-z0-9+.-]*:", target) or target.startswith("URL"):
            continue
        fault = target_fault(root, path, target, anchors)
        if fault:
            line = shown.count("\n", 0, match.start()) + 1
            yield f"{path.relative_to(root)}:{line}: {target}: {fault}"


def target_fault(root, path, target, anchors):
    file, _, anchor = target.partition("#")
    page = (path.parent / urllib.parse.unquote(file)).resolve() if file else path
    if not page.exists():
        return "no such file"
    if not page.is_relative_to(root):
        return "outside of the repository"
    if anchor and page.suffix == ".md" and anchor not in anchors_of(page, anchors):
        return "no such heading"
    return None


def mention_faults(root, path, anchors):
    try:
        text = path.read_text()
    except UnicodeDecodeError:
        return
    for match in MENTION.finditer(text):
        fault = target_fault(root, root / "x", match[0], anchors)
        if fault:
            line = text.count("\n", 0, match.start()) + 1
            yield f"{path.relative_to(root)}:{line}: {match[0]}: {fault}"


def summary_faults(root, files):
    docs = root / "docs"
    summary = docs / "SUMMARY.md"
    if not summary.exists():
        return
    listed = {(docs / match[1]).resolve() for match in LINK.finditer(summary.read_text())}
    for path in files:
        if path.suffix == ".md" and path.is_relative_to(docs) and path != summary:
            is_for_users = path.relative_to(docs).parts[0] not in NOT_IN_BOOK
            if is_for_users and path not in listed:
                yield f"{path.relative_to(root)}: not in docs/SUMMARY.md"


def without_code(text):
    """Returns the text with code and comments replaced by spaces, which keeps line numbers."""
    for pattern in (COMMENT, FENCE, CODE):
        text = pattern.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    return text


def anchors_of(page, known):
    """Returns the anchors of a page's headings, as GitHub and mdBook derive them."""
    if page not in known:
        text = FENCE.sub("", COMMENT.sub("", page.read_text()))
        found, counts = set(NAMED.findall(text)), {}
        for heading in HEADING.findall(text):
            slug = slug_of(heading)
            count = counts.get(slug, 0)
            counts[slug] = count + 1
            found.add(f"{slug}-{count}" if count else slug)
        known[page] = found
    return known[page]


def slug_of(heading):
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


def self_test():
    """Checks that the check reports a fault of each kind, and nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve() / "root"
        (root / "docs").mkdir(parents=True)
        pages = {
            "docs/SUMMARY.md": "- [A](a.md)\n",
            "docs/a.md": "# A `b`, c\n## Two\n## Two\n[1](#a-b-c) [2](b.md#two) [3](#two-1) `[no](no.md)`\n"
            "```\n[no](no.md)\n```\n",
            "docs/b.md": "# B\n[missing](c.md)\n![image](c.svg)\n[anchor](a.md#three)\n[out](../../x)\n"
            "[web](https://example.org)\n",
            "code.py": '"""See docs/a.md and docs/c.md."""\n',
        }
        for name, text in pages.items():
            (root / name).write_text(text)
        expected = {
            "docs/a.md:4: b.md#two: no such heading",
            "docs/b.md:2: c.md: no such file",
            "docs/b.md:3: c.svg: no such file",
            "docs/b.md:4: a.md#three: no such heading",
            "docs/b.md:5: ../../x: no such file",
            "code.py:1: docs/c.md: no such file",
            "docs/b.md: not in docs/SUMMARY.md",
        }
        found = set(check(root, [root / name for name in pages]))
        assert found == expected, f"unexpected {found - expected}, missing {expected - found}"


if __name__ == "__main__":
    main()
