# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils import _alone, _streams
from ansible_collections.unimem.dgx_spark.plugins.module_utils._rsync import OverDaemon, OverSsh
from ansible_collections.unimem.dgx_spark.plugins.module_utils._ssh import Peer
from ansible_collections.unimem.dgx_spark.plugins.module_utils._streams import LARGE, Copy, PushError, Stream, alone, balance, push, stream_count

SSH = OverSsh(Peer("192.168.100.11", "ssh-ed25519 AAAA"))
SECRET = "s3cr3t-s3cr3t-s3cr3t"

#: Stands in for rsync: notes its arguments, names, environment and password, then does as its plan says for each call.
PROGRAM = """#!{python}
import json, os, sys, time
folder = os.environ["FAKE_RSYNC"]
names = sys.stdin.buffer.read().decode().split("\\0")[:-1]
password = [open(word.split("=", 1)[1]).read() for word in sys.argv if word.startswith("--password-file=")]
descriptor = os.open(os.path.join(folder, "calls"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
environment = [name for name in os.environ if name.startswith("RSYNC_")]
os.write(descriptor, (json.dumps([sys.argv[1:], names, password, environment]) + "\\n").encode())
# Which call this is, by where its own line ends: another one may have written by now.
count = open(os.path.join(folder, "calls"), "rb").read(os.lseek(descriptor, 0, os.SEEK_CUR)).count(b"\\n")
plan = json.load(open(os.path.join(folder, "plan")))
step = plan[min(count, len(plan)) - 1]
sys.stdout.write("\\r  %d  50%%  1.00MB/s  0:00:01 " % step.get("sent", 0)); sys.stdout.flush()
time.sleep(step.get("sleep", 0))
sys.stderr.write(step.get("stderr", ""))
sys.exit(step.get("status", 0))
"""


class FakeRsync:
    """A program rsync on PATH with a plan."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def plan(self, *steps: dict[str, object]) -> None:
        (self.folder / "plan").write_text(json.dumps(steps))

    @property
    def calls(self) -> list[list[list[str]]]:
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]


@pytest.fixture
def rsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeRsync:
    program = tmp_path / "rsync"
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_RSYNC", str(tmp_path))
    monkeypatch.setattr(_streams, "_PAUSE", 0.0)
    fake = FakeRsync(tmp_path)
    fake.plan({})
    return fake


def copy(route: OverSsh | OverDaemon = SSH, tries: int = 3) -> Copy:
    return Copy(route, "/m", "/s", 60, tries)


def quiet() -> None:
    """No report wanted."""


def test_streams_are_balanced_by_size() -> None:
    sizes = {f"shard-{number}": 100 * number for number in range(1, 40)}
    streams = balance(sizes, 4)
    loads = [stream.size for stream in streams]
    assert sum(loads) == sum(sizes.values()) and max(loads) - min(loads) <= 100
    assert sorted(name for stream in streams for name in stream.names) == sorted(sizes)


def test_links_and_empty_files_do_not_all_end_in_one_stream() -> None:
    streams = balance({f"link-{number}": 0 for number in range(40)}, 4)
    assert [len(stream.names) for stream in streams] == [10, 10, 10, 10]


def test_no_stream_without_files() -> None:
    assert [stream.names for stream in balance({"a": 5}, 8)] == [["a"]]


@pytest.mark.parametrize(
    ("large", "asked", "cores", "count"),
    [(39, 0, 20, 8), (39, 0, 12, 6), (39, 0, 2, 1), (39, 0, 1, 1), (3, 0, 20, 3), (0, 0, 20, 1), (39, 4, 2, 4), (2, 4, 20, 2)],
)
def test_how_many_streams(large: int, asked: int, cores: int, count: int) -> None:
    assert stream_count([LARGE] * large + [10] * 50, asked, cores) == count


def test_names_go_over_standard_input_whatever_they_are(rsync: FakeRsync) -> None:
    names = ["a b", "c'd\"e", "f\ng", "-x"]
    push(copy(), [Stream(list(names), 4)], quiet)
    assert rsync.calls[0][1] == names


def test_environment_cannot_turn_rsync_elsewhere(rsync: FakeRsync, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RSYNC_RSH", "evil")
    monkeypatch.setenv("RSYNC_PROXY", "evil:80")
    push(copy(), [Stream(["a"], 1)], quiet)
    assert rsync.calls[0][3] == []


def test_the_secret_goes_through_a_pipe(rsync: FakeRsync) -> None:
    push(copy(OverDaemon("192.168.100.11", 8730, "copy-1", "model", SECRET)), [Stream(["a"], 1), Stream(["b"], 1)], quiet)
    for argv, _names, password, _environment in rsync.calls:
        assert password == [SECRET + "\n"] and not any(SECRET in word for word in argv)


def test_a_broken_connection_is_tried_again_by_its_stream_only(rsync: FakeRsync) -> None:
    rsync.plan({"status": 12, "stderr": "rsync: connection unexpectedly closed\n"}, {})
    streams = [Stream(["a"], 1)]
    push(copy(), streams, quiet)
    assert streams[0].tries == 2 and streams[0].finished and streams[0].sent == 1
    assert [call[1] for call in rsync.calls] == [["a"], ["a"]]


def test_a_full_disk_is_not_tried_again(rsync: FakeRsync) -> None:
    rsync.plan({"status": 11, "stderr": 'rsync: write failed on "/s/a": No space left on device (28)\n'})
    with pytest.raises(PushError, match="the peer's disk is full"):
        push(copy(), [Stream(["a"], 1)], quiet)
    assert len(rsync.calls) == 1


def test_tries_end(rsync: FakeRsync) -> None:
    rsync.plan({"status": 30})
    with pytest.raises(PushError, match="nothing was sent or received for too long"):
        push(copy(tries=2), [Stream(["a"], 1)], quiet)
    assert len(rsync.calls) == 2


def test_the_first_stream_that_cannot_go_on_ends_the_others(rsync: FakeRsync) -> None:
    start = time.monotonic()
    rsync.plan({"status": 23, "stderr": "rsync: permission denied\n"}, {"sleep": 600})
    with pytest.raises(PushError, match="status 23"):
        push(copy(), [Stream(["a"], 1), Stream(["b"], 1)], quiet)
    assert time.monotonic() - start < 600, "the other stream was waited for"


def test_progress_is_reported_while_it_runs(rsync: FakeRsync) -> None:
    rsync.plan({"sent": 700, "sleep": 1.6})
    streams, seen = [Stream(["a"], 1000)], []
    push(copy(), streams, lambda: seen.append(streams[0].sent))
    assert 700 in seen and seen[-1] == 1000


def test_progress_never_says_more_than_there_is(rsync: FakeRsync) -> None:
    rsync.plan({"sent": 10**15, "sleep": 1.2})
    streams, seen = [Stream(["a"], 1000)], []
    push(copy(), streams, lambda: seen.append(streams[0].sent))
    assert max(seen) == 1000


def test_one_copy_to_a_place_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_alone, "_PAUSE", 0.01)
    waited = []
    with alone("peer /s", 1, quiet):
        with alone("other /s", 1, quiet):
            pass
        with pytest.raises(PushError, match="has not ended within"), alone("peer /s", 0.1, lambda: waited.append(1)):
            pass
    assert waited
    with alone("peer /s", 0, quiet):
        pass
