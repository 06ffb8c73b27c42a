"""The prose of the repository: comments, doc comments, messages and pages, by area."""

import ast
import io
import re
import subprocess
import tokenize
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# File with the numbers of occurrences that areas may have beyond the limits.
BUDGETS = Path(__file__).parent / "budgets.toml"
# Files that are generated or written by others, or that list words to avoid.
EXCLUDED = re.compile(r"^(docs/results/|docs/plots/|docs/internals/style\.md$|LICENSE|.*\.lock$|clients/c/larder\.h$)")
RUST_COMMENT = re.compile(r"^\s*//[/!]?\s?(.*)$")
# String literals with at least three words: messages, help, errors.
RUST_MESSAGE = re.compile(r'"((?:[^"\\]|\\.)*)"')
FENCE = re.compile(r"^\s*(```|~~~)")
CODE_SPAN = re.compile(r"`[^`]*`")
# A page counts as one line for each PAGE_LINE_LEN characters, because its actual lines are long.
PAGE_LINE_LEN = 100


@dataclass
class Text:
    """A piece of prose, and the number of lines that it counts as."""

    path: str
    number: int
    text: str
    lines: float = 1


@cache
def files():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [path for path in listed.splitlines() if not EXCLUDED.match(path) and (ROOT / path).is_file()]


def area(path):
    """Returns the area of a file: the crate, page or folder whose budget covers it."""
    parts = path.split("/")
    if path.endswith(".md"):
        return path
    if parts[0] in ("crates", "clients", "measure") and len(parts) > 2:
        return "/".join(parts[:2])
    if parts[0] == "tests" and len(parts) > 2 and parts[1].startswith("larder-"):
        return "/".join(parts[:2])
    return parts[0]


def texts(path):
    """Returns the pieces of prose in a file."""
    content = (ROOT / path).read_text(errors="replace")
    if path.endswith(".rs"):
        return list(rust(path, content))
    if path.endswith(".md"):
        return list(page(path, content))
    if path.endswith(".py") or content.startswith("#!/usr/bin/env python3"):
        return list(python(path, content))
    if path.endswith((".rb", ".sh", ".toml", ".yml", ".yaml")) or content.startswith("#!"):
        return list(hashes(path, content))
    if path.endswith((".c", ".h", ".go", ".proto")):
        return list(rust(path, content))
    return []


def rust(path, content):
    is_code = False
    for number, line in enumerate(content.splitlines(), 1):
        comment = RUST_COMMENT.match(line)
        if comment:
            # Code in doc comments is not prose.
            if FENCE.match(comment[1]):
                is_code = not is_code
            elif not is_code:
                yield Text(path, number, CODE_SPAN.sub("", comment[1]))
            continue
        is_code = False
        trailing = re.search(r"[;,{}]\s+// (.*)$", line)
        if trailing:
            yield Text(path, number, CODE_SPAN.sub("", trailing[1]))
        for message in RUST_MESSAGE.findall(line):
            if len(message.split()) >= 3:
                yield Text(path, number, message)


def python(path, content):
    try:
        tree = ast.parse(content)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            doc = ast.get_docstring(node, clean=False)
            if doc:
                first = node.body[0].lineno
                for offset, line in enumerate(doc.splitlines()):
                    yield Text(path, first + offset, CODE_SPAN.sub("", line))
    for token in tokenize.generate_tokens(io.StringIO(content).readline):
        if token.type == tokenize.COMMENT:
            yield Text(path, token.start[0], CODE_SPAN.sub("", token.string.lstrip("#! ")))


def hashes(path, content):
    for number, line in enumerate(content.splitlines(), 1):
        comment = re.match(r"^\s*#+\s?(.*)$", line)
        if comment and not line.startswith("#!"):
            yield Text(path, number, CODE_SPAN.sub("", comment[1]))


def page(path, content):
    is_code = False
    for number, line in enumerate(content.splitlines(), 1):
        if FENCE.match(line):
            is_code = not is_code
        elif not is_code and line.strip():
            text = CODE_SPAN.sub("", line)
            yield Text(path, number, text, max(1, len(text) / PAGE_LINE_LEN))
