"""Runs the commands of docs/grpc.md."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from pages import check_block, client_blocks

pytestmark = [pytest.mark.larder, pytest.mark.long]
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
    (block,) = client_blocks("grpc.md")
    check_block(block, {"50051": server.grpc_address.rpartition(":")[2]}, PATH=f"{grpcurl}:{os.environ['PATH']}")
