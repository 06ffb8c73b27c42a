"""Libraries for Node.js that use Redis: ioredis, node-redis, redlock and rate limiters."""

import shutil
import subprocess
from pathlib import Path

import pytest

# npm downloads the packages.
pytestmark = [pytest.mark.larder, pytest.mark.long]

MODULE = Path(__file__).parent / "node"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["segment", "delayed"])
def test_redis_libraries(start, tmp_path, kind):
    assert shutil.which("npm"), "npm is not installed"
    for file in MODULE.iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path)
    install = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"]
    installed = subprocess.run(install, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert installed.returncode == 0, installed.stdout + installed.stderr
    with start(engine=kind, resp=True) as server:
        test = ["node", "redis_libraries.js", str(server.resp_port)]
        done = subprocess.run(test, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout == "ok\n", done.stdout + done.stderr
