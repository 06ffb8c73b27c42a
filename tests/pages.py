"""The shell blocks of the documentation."""

import os
import re
import subprocess

from server import ROOT, TIMEOUT_SECS

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(?:sh|console)\n(.*?)^```", re.DOTALL | re.MULTILINE)
# Replacements for tools: `nc` in Python, because not every machine has it, and a `curl` that uses no proxy and prints a
# line break after the body.
TOOLS = r"""
nc() { python3 -c 'import sys, socket
with socket.create_connection(sys.argv[1:]) as peer:
    peer.sendall(sys.stdin.buffer.read())
    sys.stdout.buffer.write(b"".join(iter(lambda: peer.recv(4096), b"")))' "$@"; }
curl() { command curl -sS --noproxy '*' "$@" && echo; }
"""


def shell_blocks(page):
    """Yields the commands of each shell block of a page, without prompts."""
    for block in BLOCK.findall(page.read_text()):
        if any(line.startswith("$ ") for line in block.splitlines()):
            lines = block.replace("\\\n", " ").splitlines()
            block = "".join(f"{line[2:]}\n" for line in lines if line.startswith("$ "))
        yield block


def client_blocks(name):
    """Returns the shell blocks of a page in docs/, except blocks that start a server."""
    return [block for block in shell_blocks(ROOT / "docs" / name) if not block.startswith("larderd")]


def expected_lines(block):
    """Returns the output that a block shows in comments."""
    return [line[2:] for line in block.splitlines() if line.startswith("# ")]


def output_lines(output):
    """Returns the non-empty lines of an output."""
    return [line for line in output.replace("\r", "").split("\n") if line]


def check_block(block, replacements, **environment):
    """Runs a block after applying `replacements` (for example of addresses), and compares its output with the
    documented output."""
    script = TOOLS + block
    for documented, present in replacements.items():
        script = script.replace(documented, str(present))
    done = subprocess.run(
        ["bash", "-euc", script], capture_output=True, text=True, timeout=TIMEOUT_SECS, env={**os.environ, **environment}
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert output_lines(done.stdout) == expected_lines(block)
