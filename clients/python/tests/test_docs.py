"""Tests that the examples of the documentation run. Only the port of the server is replaced."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

BINDING = Path(__file__).resolve().parents[1]
DOCS = BINDING.parents[1] / "docs" / "python.md"

DJANGO = """
from django.conf import settings
settings.configure(CACHES=CACHES)
from django.core.cache import cache
cache.set("key", [1])
assert cache.get("key") == [1]
"""


def examples(path):
    return re.findall(r"^```python\n(.*?)^```$", path.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("path, number", [(DOCS, 5), (BINDING / "README.md", 3)])
def test_examples(server, client, path, number):
    found = examples(path)
    assert len(found) == number
    program = "".join(found).replace("localhost:11211", server.address) + DJANGO
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("module", ["larder_client", "larder_client.asyncio"])
def test_the_examples_of_modules(server, module):
    documented = importlib.import_module(module).__doc__.replace("localhost:11211", server.address)
    lines = [line for line in documented.splitlines() if line.startswith("    ") or not line]
    exec("\n".join(line.removeprefix("    ") for line in lines), {})
