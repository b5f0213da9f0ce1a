# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import shlex

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._rsync import EXIT_CODES, PushError, push, rsync_argv
from ansible_collections.unimem.dgx_spark.plugins.module_utils._ssh import Peer, PeerError, peer_from, refusal, rsh_text, ssh_argv

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBq"
PARAMS = {"address": "192.168.100.11", "host_key": f"{KEY} root@spark-02\n", "user": None, "port": 22, "identity": None}


class FakeRun:
    """Answers with prepared statuses, and remembers what it was called with."""

    def __init__(self, *answers: tuple[int, str]) -> None:
        self.answers = list(answers)
        self.calls: list[tuple[list[str], bytes | None]] = []

    def __call__(self, argv: list[str], data: bytes | None = None) -> tuple[int, str, str]:
        self.calls.append((argv, data))
        status, stderr = self.answers.pop(0)
        return status, "", stderr


def test_the_host_key_is_pinned_and_nothing_is_asked() -> None:
    words = ssh_argv(peer_from(PARAMS))
    assert "BatchMode=yes" in words and "StrictHostKeyChecking=yes" in words and "Compression=no" in words
    assert f"KnownHostsCommand=/bin/echo 192.168.100.11 {KEY}" in words


def test_the_best_of_several_keys_counts() -> None:
    text = f"ssh-rsa AAAAB3Nz x\necdsa-sha2-nistp256 AAAAE2Vj y\n{KEY} z\nssh-dss AAAA w\n"
    assert peer_from({**PARAMS, "host_key": text}).host_key == KEY


@pytest.mark.parametrize(
    "change",
    [
        {"address": "-oProxyCommand=reboot"},
        {"address": "a b"},
        {"address": "x;reboot"},
        {"user": "-l"},
        {"user": "a@b"},
        {"port": 70000},
        {"identity": 'a"b'},
        {"host_key": "ssh-ed25519 $(reboot)"},
        {"host_key": "no key"},
        {"host_key": ""},
    ],
)
def test_values_that_ssh_could_misread_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(PeerError):
        peer_from({**PARAMS, **change})


def test_other_port_is_part_of_the_known_name() -> None:
    words = ssh_argv(peer_from({**PARAMS, "port": 2222}))
    assert words[words.index("-p") + 1] == "2222" and any("/bin/echo [192.168.100.11]:2222 " in word for word in words)


def test_rsh_text_is_the_same_command() -> None:
    peer = peer_from({**PARAMS, "identity": "/root/my keys/id"})
    assert shlex.split(rsh_text(peer)) == ssh_argv(peer)


def test_rsync_has_no_option_that_can_leave_a_wrong_file_behind() -> None:
    argv = rsync_argv(Peer("192.168.100.11", KEY), "/models", "/models/.unimem-model-sync/x", 60)
    assert not {"--append", "--append-verify", "--inplace", "--update", "-u", "--compress", "-z"} & set(argv)
    assert argv[-2:] == ["/models/", "192.168.100.11:/models/.unimem-model-sync/x/"] and "--protect-args" in argv


def test_ipv6_address_is_bracketed_for_rsync_only() -> None:
    peer = peer_from({**PARAMS, "address": "fe80::1%enp1s0f0np0", "user": "spark"})
    assert rsync_argv(peer, "/m", "/s", 60)[-1] == "spark@[fe80::1%enp1s0f0np0]:/s/"
    assert peer.login == "spark@fe80::1%enp1s0f0np0"


def test_names_go_over_standard_input_whatever_they_are() -> None:
    run = FakeRun((0, ""))
    assert push(run, peer_from(PARAMS), "/m", "/s", ["a b", "c'd\"e", "f\ng", "-x"], 60, 3) == 1
    assert run.calls[0][1] == b"a b\0c'd\"e\0f\ng\0-x\0"


def test_a_broken_connection_is_tried_again_and_a_full_disk_is_not() -> None:
    run = FakeRun((12, "rsync: connection unexpectedly closed"), (0, ""))
    assert push(run, peer_from(PARAMS), "/m", "/s", ["a"], 60, 3) == 2
    run = FakeRun((11, "rsync: write failed on \"/s/a\": No space left on device (28)\nrsync error: error in file IO (code 11)"))
    with pytest.raises(PushError, match="the peer's disk is full") as caught:
        push(run, peer_from(PARAMS), "/m", "/s", ["a"], 60, 3)
    assert len(run.calls) == 1 and "No space left" in str(caught.value)


def test_tries_end() -> None:
    run = FakeRun((30, ""), (30, ""))
    with pytest.raises(PushError, match=EXIT_CODES[30]):
        push(run, peer_from(PARAMS), "/m", "/s", ["a"], 60, 2)
    assert run.answers == []


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("root@192.168.100.11: Permission denied (publickey).", "ssh-copy-id"),
        ("Host key verification failed.", "another host key"),
        ("ssh: connect to host 192.168.100.11 port 22: Connection timed out", "check the cable"),
        ("ssh: connect to host 192.168.100.11 port 22: Connection refused", "ListenAddress"),
        ("", "no message"),
    ],
)
def test_refusals_name_the_remedy(said: str, remedy: str) -> None:
    text = refusal(peer_from(PARAMS), said)
    assert remedy in text and "192.168.100.11" in text
