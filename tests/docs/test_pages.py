"""Tests the shell blocks of the guide and the README.

The tests check that all options in `larderd` and `larder` command lines of all pages exist. They also run the blocks of
some pages as if a user had pasted them, and compare the output with the documented output."""

import os
import re
import shlex
import signal
import socket
import subprocess

import pytest

from pages import PAGES, TOOLS, expected_lines, output_lines, shell_blocks
from server import BUILT, LARDERD, ROOT, TIMEOUT_SECS, free_ports, wait_until

pytestmark = pytest.mark.larder
# Pages whose blocks the test runs in their order, except blocks that build with cargo. Other tests run the blocks of
# the pages on HTTP, metrics, gRPC, RESP and tags.
RUN = ["start", "from-memcached", "configuration"]


def command_lines(program):
    """Yields, for each command line of the pages that starts the program, its arguments and the name of the page."""
    for page in PAGES:
        for block in shell_blocks(page):
            # A variable such as `$i` in a loop stands for a digit.
            joined = re.sub(r"\$[a-z]\b", "1", block.replace("\\\n", " "))
            before = r"(?m)^(?:[A-Z_]+=\S+ |for .*; do |until |target/release/)*"
            for words in re.findall(rf"{before}{program}( [^;&|\n]*)", joined):
                words = re.sub(r"#.*|[<>].*", "", words)
                # Omits lines with an ellipsis: it stands for the options of another line.
                if "…" not in words:
                    yield pytest.param(shlex.split(words), id=f"{page.name}: {words.strip()}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_shell_blocks_are_valid(page):
    for block in shell_blocks(page):
        done = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True)
        assert done.returncode == 0, f"{done.stderr}\n{block}"


@pytest.mark.parametrize("arguments", list(command_lines("larderd")))
def test_larderd_accepts_the_command_line(arguments, tmp_path):
    if "--config" in arguments:
        # Uses the example file in the repository, which is the file that the page installs.
        arguments[arguments.index("--config") + 1] = str(ROOT / "contrib" / "larder.toml")
    done = subprocess.run(
        [LARDERD, *arguments, "--check-config"], cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_SECS
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("arguments", list(command_lines("larder")))
def test_larder_has_the_subcommand_and_options(arguments):
    subcommands = []
    for word in arguments:
        if word.startswith("-") or not re.fullmatch("[a-z-]+", word) or len(subcommands) == 2:
            break
        subcommands.append(word)
    text = help_text(subcommands)
    options = {option.partition("=")[0] for option in arguments if re.match("--?[a-zA-Z]", option)}
    missing = [option for option in sorted(options) if not re.search(rf"(?m)^ +.*?(?<!\S){option}\b", text)]
    assert not missing, f"larder {' '.join(subcommands)} has no {missing}"


def help_text(subcommands):
    """Returns the help text of the subcommand at the start of the words. The remaining words are arguments."""
    for length in range(len(subcommands), -1, -1):
        command = [BUILT / "larder", *subcommands[:length], "--help"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECS)
        if done.returncode == 0:
            return done.stdout
    raise AssertionError(done.stderr)


def listens(port):
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("name", RUN)
def test_page_gives_the_output_that_it_shows(name, tmp_path):
    ports = dict(zip((11211, 11212, 8080), free_ports(3)))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("LARDER_")}
    environment |= {"PATH": f"{BUILT}:{os.environ['PATH']}", "LARDER_PORT": str(ports[11211])}
    if os.geteuid() == 0:
        environment["LARDER_USER"] = "root"
    with open(tmp_path / "log", "w") as log:
        shell = subprocess.Popen(
            ["bash"], cwd=tmp_path, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=log, start_new_session=True,
        )
    try:
        shell.stdin.write(TOOLS)
        for block in shell_blocks(ROOT / "docs" / f"{name}.md"):
            if block.startswith("cargo "):
                continue
            expected = expected_lines(block)
            block = re.sub(r"\b(11211|11212|8080)\b", lambda port: str(ports[int(port[0])]), block)
            if block.rstrip().endswith("&"):
                shell.stdin.write(block)
                shell.stdin.flush()
                port = re.search(r"-p (\d+)", block)
                port = int(port[1]) if port else ports[11211]
                wait_until(lambda port=port: listens(port), "the start of the server")
                continue
            shell.stdin.write(f"{block}\necho; echo END OF BLOCK\n")
            shell.stdin.flush()
            output = []
            while (line := shell.stdout.readline()) != "END OF BLOCK\n":
                assert line, f"the shell has ended: {(tmp_path / 'log').read_text()}"
                output.append(line)
            assert output_lines("".join(output)) == expected, block
    finally:
        # Stops the shell, and servers that the page has started but not stopped.
        os.killpg(shell.pid, signal.SIGTERM)
        shell.communicate(timeout=TIMEOUT_SECS)
