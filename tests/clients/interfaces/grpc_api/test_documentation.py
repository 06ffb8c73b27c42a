"""The commands of docs/grpc.md."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.larder
ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def grpcurl():
    """Builds grpcurl once, and returns its folder."""
    assert shutil.which("go"), "Go is not installed"
    folder = ROOT / "target" / "go" / "bin"
    built = subprocess.run(
        ["go", "build", "-o", f"{folder}/", "github.com/fullstorydev/grpcurl/cmd/grpcurl"],
        cwd=Path(__file__).parent / "grpcurl",
        env={**os.environ, "GOTOOLCHAIN": "local"},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert built.returncode == 0, built.stderr
    return folder


# The first build downloads and compiles the dependencies of grpcurl.
@pytest.mark.timeout(900)
def test_the_commands_of_the_documentation(server, cache, grpcurl):
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "grpc.md").read_text(), re.DOTALL)
    (block,) = [block for block in blocks if not block.startswith("larderd")]
    expected = [line[2:] for line in block.splitlines() if line.startswith("# ")]
    script = block.replace("127.0.0.1:50051", server.grpc_address)
    environment = {**os.environ, "PATH": f"{grpcurl}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert done.stdout.splitlines() == expected
