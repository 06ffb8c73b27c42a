"""Clients for Java: Jedis and Lettuce."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from server import free_ports

# Maven downloads the libraries.
pytestmark = [pytest.mark.larder, pytest.mark.long]

MODULE = Path(__file__).parent / "java"


@pytest.fixture(scope="module")
def classpath(tmp_path_factory):
    """Provides the class path of the libraries and of the compiled tests."""
    assert shutil.which("mvn"), "Maven is not installed"
    assert shutil.which("javac"), "the JDK is not installed"
    folder = tmp_path_factory.mktemp("java")
    file = folder / "classpath"
    install = ["mvn", "-q", "-B", "dependency:build-classpath", f"-Dmdep.outputFile={file}"]
    installed = subprocess.run(install, cwd=MODULE, capture_output=True, text=True, timeout=500)
    assert installed.returncode == 0, installed.stdout + installed.stderr
    path = f"{folder}{os.pathsep}{file.read_text()}"
    compile = ["javac", "-cp", path, "-d", folder, *MODULE.glob("*.java")]
    compiled = subprocess.run(compile, capture_output=True, text=True, timeout=200)
    assert compiled.returncode == 0, compiled.stdout + compiled.stderr
    return path


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["segment", "delayed"])
@pytest.mark.parametrize("program", ["TestJedis", "TestLettuce"])
def test_java_client(start, classpath, tmp_path, program, kind):
    (port,) = free_ports(1)
    listener = "-l", f"proto[resp]:127.0.0.1:{port}"
    log = tmp_path / "log"
    with log.open("wb") as errors:
        test = subprocess.Popen(
            ["java", "-cp", classpath, program, str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        with start(*listener, engine=kind):
            assert test.stdout.readline() == "restart\n", log.read_text()
        with start(*listener, engine=kind):
            output, _ = test.communicate("\n", timeout=200)
    finally:
        test.kill()
    assert test.returncode == 0 and output == "ok\n", output + log.read_text()


@pytest.mark.timeout(900)
def test_lettuce_fails_on_messages_about_all_items_from_redis_server(reference, classpath):
    test = ["java", "-cp", classpath, "TestLettuce", str(reference), "all-items"]
    done = subprocess.run(test, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0 and done.stdout == "ok\n", done.stdout + done.stderr
