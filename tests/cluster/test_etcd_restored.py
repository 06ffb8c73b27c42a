"""An etcd that was restored from a backup."""

import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from group import Etcd, Group
from replicas import Relay
from server import wait_until

pytestmark = pytest.mark.larder

# A member reads all keys within two seconds of a failed request to etcd, and without a failure after 45 to 75 s.
READ_SECS_MAX = 30


def data(etcd):
    [folder] = Path(etcd.dir.name).iterdir()
    return folder


def port(etcd):
    return int(etcd.url.rpartition(":")[2])


def revision(etcd):
    return int(etcd.call("/v3/kv/range", {"key": "AA=="})["header"]["revision"])


def test_members_notice_an_earlier_map_in_an_etcd_with_a_later_revision(tmp_path):
    """The restored etcd has as many keys as the lost one, so a read of the changes alone would find nothing."""
    with Etcd() as lost, Etcd() as restored, Relay(port(lost)) as relay:
        with Group(SimpleNamespace(url=f"http://127.0.0.1:{relay.port}"), 2) as group:
            lost.kill()
            shutil.copytree(data(lost), tmp_path / "backup")
            assert lost.start()
            group.wait_until_in_sync()
            planned = {**lost.value("demo/map"), "moves": {"1": "0-9"}}
            lost.overwrite("demo/map", str(planned).replace("'", '"'))
            wait_until(lambda: all(node.seen()["slots_moving"] == "10" for node in group), "a planned move")
            restored.kill()
            shutil.rmtree(data(restored))
            shutil.copytree(tmp_path / "backup", Path(restored.dir.name) / str(port(restored)))
            assert restored.start()
            while revision(restored) <= revision(lost) + 100:
                restored.overwrite("other", "")
            failures = [int(node.seen()["etcd_failures"]) for node in group]
            relay.is_open.clear()
            wait_until(lambda: all(int(node.seen()["etcd_failures"]) > before for node, before in zip(group, failures)),
                       "failed requests of each member")  # fmt: skip
            relay.target = port(restored)
            relay.break_connections()
            relay.is_open.set()
            start_time = time.monotonic()
            wait_until(lambda: all(node.seen()["slots_moving"] == "0" for node in group), "the map of the backup")
            assert time.monotonic() - start_time < READ_SECS_MAX
