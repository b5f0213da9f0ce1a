# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import shlex

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._rsync import (
    EXIT_CODES,
    OverDaemon,
    OverSsh,
    Route,
    daemon_from,
    is_passing,
    rsync_argv,
    sent_bytes,
)
from ansible_collections.unimem.dgx_spark.plugins.module_utils._ssh import Peer, PeerError, peer_from, refusal, rsh_text, ssh_argv

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBq"
PARAMS = {"address": "192.168.100.11", "host_key": f"{KEY} root@spark-02\n", "user": None, "port": 22, "identity": None}


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


ROUTES = [OverSsh(Peer("192.168.100.11", KEY)), OverDaemon("192.168.100.11", 8730, "copy-1", "model", "s3cr3t-s3cr3t-s3cr3t")]


@pytest.mark.parametrize("route", ROUTES)
def test_rsync_has_no_option_that_can_leave_a_wrong_file_behind(route: Route) -> None:
    argv = rsync_argv(route, "/models", "/models/.unimem-model-sync/x", 60)
    assert not {"--append", "--append-verify", "--update", "-u", "--sparse", "-S", "--compress", "-z", "--size-only", "--ignore-times"} & set(argv)
    assert "--inplace" in argv and "--protect-args" in argv and "--timeout=60" in argv
    assert argv[-2] == "/models/"


def test_a_peer_that_is_gone_is_noticed_while_connecting() -> None:
    assert "--contimeout=10" in rsync_argv(ROUTES[1], "/m", "/s", 60)
    (shell,) = [word for word in rsync_argv(ROUTES[0], "/m", "/s", 60) if word.startswith("--rsh=")]
    assert "ConnectTimeout=10" in shell and "ServerAliveInterval=15" in shell


def test_destinations() -> None:
    assert ROUTES[0].destination("/s") == "192.168.100.11:/s/"
    assert ROUTES[1].destination("/s") == "rsync://copy-1@192.168.100.11:8730/model/"


def test_ipv6_address_is_bracketed_for_rsync_only() -> None:
    peer = peer_from({**PARAMS, "address": "fe80::1%enp1s0f0np0", "user": "spark"})
    assert OverSsh(peer).destination("/s") == "spark@[fe80::1%enp1s0f0np0]:/s/"
    assert peer.login == "spark@fe80::1%enp1s0f0np0"
    assert OverDaemon("fd00::2", 1, "u", "m", "x").destination("/s") == "rsync://u@[fd00::2]:1/m/"


def test_the_secret_is_in_no_argument_and_in_no_text() -> None:
    argv = rsync_argv(ROUTES[1], "/m", "/s", 60, "/dev/fd/9")
    assert "--password-file=/dev/fd/9" in argv and not any("s3cr3t" in word for word in argv)
    assert "s3cr3t" not in repr(ROUTES[1]) and "s3cr3t" not in ROUTES[1].explain(5, "@ERROR: auth failed on module model")


@pytest.mark.parametrize(
    "change", [{"user": "a b"}, {"user": "-a"}, {"module": "a/b"}, {"port": 0}, {"port": 70000}, {"password": "short"}, {"password": "a" * 20 + "\n"}]
)
def test_a_daemon_that_could_be_misread_is_refused(change: dict[str, object]) -> None:
    params = {"user": "copy-1", "module": "model", "port": 8730, "password": "x" * 32}
    assert daemon_from(params, "192.168.100.11").port == 8730
    with pytest.raises(PeerError) as caught:
        daemon_from({**params, **change}, "192.168.100.11")
    assert str(change.get("password", "\0")) not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("", None),
        ("sending incremental file list\n", None),
        ("\r         32,768   0%    0.00kB/s", None),
        ("\r          32768   0%    0.00kB/s    0:00:00  ", 32768),
        ("\r     1107296256  17%  352.01MB/s    0:00:14  \r     6442450944 100%  290.00MB/s    0:00:21 (xfr#6, to-chk=0/6)", 6442450944),
    ],
)
def test_progress_is_read_out_of_what_rsync_prints(text: str, sent: int | None) -> None:
    assert sent_bytes(text) == sent


@pytest.mark.parametrize("status", sorted(EXIT_CODES))
def test_every_exit_code_is_a_sentence_about_the_peer(status: int) -> None:
    text = ROUTES[1].explain(status, "")
    assert "192.168.100.11" in text and EXIT_CODES[status] in text


@pytest.mark.parametrize(
    ("stderr", "said"),
    [
        ('rsync: [receiver] write failed on "/s/a": No space left on device (28)', "the peer's disk is full"),
        ("rsync: mkstemp failed: Read-only file system (30)", "read-only"),
        ("@ERROR: auth failed on module model", "did not let this node in"),
        ("@ERROR: access denied to model from UNKNOWN (192.168.100.99)", "did not let this node in"),
    ],
)
def test_what_the_peer_says_counts_more_than_the_exit_code(stderr: str, said: str) -> None:
    assert said in ROUTES[1].explain(12, stderr)
    assert not is_passing(12, stderr)


def test_a_broken_connection_is_worth_another_try_and_a_full_disk_is_not() -> None:
    assert is_passing(12, "rsync: connection unexpectedly closed (0 bytes received so far)") and is_passing(30, "") and is_passing(255, "")
    assert not is_passing(11, "") and not is_passing(23, "")


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
