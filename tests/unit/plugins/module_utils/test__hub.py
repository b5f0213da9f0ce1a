# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import re
from typing import Any

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils import _hub
from ansible_collections.unimem.dgx_spark.plugins.module_utils._hub import (
    About,
    HubError,
    Would,
    parse_dry_run,
    parse_version,
    place_of,
    request_from,
    sentence,
)

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CACHE = "/home/spark/.cache/huggingface/hub/models--Qwen--Qwen3.5-122B-A10B-FP8"
ABOUT = About("org/x", COMMIT, "/srv/hub/models--org--x", "https://hub.example.com")


def asked(**more: Any) -> dict[str, Any]:
    return {"repository": "Qwen/Qwen3.5-122B-A10B-FP8", "revision": COMMIT, "path": CACHE, **more}


def test_a_repository_of_the_cache_goes_to_the_directory_above_it() -> None:
    place = place_of(request_from(asked(path=CACHE + "/")))
    assert place.layout == "cache" and place.folder == CACHE and place.model_path == f"{CACHE}/snapshots/{COMMIT}"
    assert place.options == ["--cache-dir", "/home/spark/.cache/huggingface/hub"]
    assert place.locks == "/home/spark/.cache/huggingface/hub/.locks/models--Qwen--Qwen3.5-122B-A10B-FP8"
    assert place.listing == f"{CACHE}/trees/{COMMIT}.json"


def test_a_snapshot_says_its_commit_itself() -> None:
    request = request_from(asked(path=f"{CACHE}/snapshots/{COMMIT}", revision=None))
    assert request.revision == COMMIT and place_of(request) == place_of(request_from(asked()))
    with pytest.raises(HubError, match="another snapshot"):
        request_from(asked(path=f"{CACHE}/snapshots/{'f' * 40}"))


def test_any_other_directory_is_a_plain_one() -> None:
    place = place_of(request_from(asked(path="/srv/models/qwen")))
    assert place.layout == "plain" and place.model_path == "/srv/models/qwen" and place.options == ["--local-dir", "/srv/models/qwen"]


@pytest.mark.parametrize("revision", ["", None, "main", "v1.0", COMMIT[:39], COMMIT + "0", COMMIT.upper()])
def test_what_moves_is_refused(revision: str | None) -> None:
    with pytest.raises(HubError, match="needs the full commit, 40 hexadecimal digits, because a branch or a tag moves"):
        request_from(asked(revision=revision))


@pytest.mark.parametrize("repository", ["", "-x/y", "a/b/c", "a--b/c", "../x", "a b/c", "a/b\n", "https://hub.example.com/a/b"])
def test_what_is_no_repository_is_refused(repository: str) -> None:
    with pytest.raises(HubError, match="is no repository"):
        request_from(asked(repository=repository))


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"path": "models/x"}, "not an absolute path"),
        ({"path": "/"}, "not an absolute path"),
        ({"include": [""]}, "a pattern of include or exclude is empty"),
        ({"path": "/srv/hub/models--Qwen--Qwen3"}, "is models--Qwen--Qwen3.5-122B-A10B-FP8 in a Hugging Face cache, and the path names models--Qwen--Qwen3:"),
        ({"path": "/models--Qwen--Qwen3.5-122B-A10B-FP8"}, "directly below /"),
    ],
)
def test_places_that_cannot_be_meant_are_refused(more: dict[str, Any], expected: str) -> None:
    with pytest.raises(HubError, match=expected):
        place_of(request_from(asked(**more)))


def test_the_arguments_hold_no_secret_and_no_option_of_others() -> None:
    request = request_from(asked(include=["*.json", "-x*"], exclude=["original/*"]))
    assert _hub.download_arguments(request, place_of(request).options, 4) == [
        "download", "Qwen/Qwen3.5-122B-A10B-FP8", "--revision", COMMIT, "--cache-dir", "/home/spark/.cache/huggingface/hub", "--max-workers", "4",
        "--include=*.json", "--include=-x*", "--exclude=original/*",
    ]  # fmt: skip
    assert "--max-workers" not in _hub.download_arguments(request, [], 0)


def test_the_environment_is_that_of_a_run_that_may_use_the_network() -> None:
    base = {"PATH": "/bin", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DEBUG": "1", "https_proxy": "http://proxy:3128"}
    told = _hub.environment_for(base, "https://hub.example.com", "t0ken")
    assert told["HF_TOKEN"] == "t0ken" and told["HF_ENDPOINT"] == "https://hub.example.com" and told["https_proxy"] == "http://proxy:3128"
    assert told["HF_HUB_OFFLINE"] == told["TRANSFORMERS_OFFLINE"] == "0" and "HF_DEBUG" not in told
    without = _hub.environment_for({"PATH": "/bin"}, "", "")
    assert "HF_TOKEN" not in without and "HF_ENDPOINT" not in without


@pytest.mark.parametrize("endpoint", ["", "https://hub.example.com", "http://127.0.0.1:8080/mirror", "http://[::1]:80"])
def test_endpoints(endpoint: str) -> None:
    assert _hub.check_endpoint(endpoint) == endpoint


@pytest.mark.parametrize("endpoint", ["hub.example.com", "ftp://x", "https://user:pass@x", "https://x?token=a", "https://x\nHost: y"])
def test_what_is_no_endpoint_is_refused_and_its_secrets_are_not_repeated(endpoint: str) -> None:
    with pytest.raises(HubError, match="is no endpoint") as caught:
        _hub.check_endpoint(endpoint)
    assert "pass@" not in str(caught.value)


@pytest.mark.parametrize("token", ["x7\nq9", "x7 q9", "töken", "x7\0"])
def test_a_token_that_no_header_can_hold_is_refused_unsaid(token: str) -> None:
    with pytest.raises(HubError, match="the token has a blank") as caught:
        _hub.check_token(token)
    assert token not in str(caught.value)


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("1.0.1\n", (1, 0)),
        ("huggingface_hub version: 0.36.2", (0, 36)),
        ("\x1b[32m✓ hf version\x1b[0m\n  version: 2.4.0\n", (2, 4)),
        ("A new version of huggingface_hub (2.4.0) is available! You are using version 1.5.0.\nTo update, run: pip\n\n1.5.0\n", (1, 5)),
        ("no number", None),
        ("", None),
    ],
)
def test_versions(said: str, version: tuple[int, int] | None) -> None:
    assert parse_version(said) == version


@pytest.mark.parametrize(
    ("said", "would"),
    [
        ("[dry-run] Will download 6 files (out of 6) totalling 9.0M.\nFILE  SIZE\n", Would(6, 6, 9_050_000)),
        ("\x1b[1m[dry-run] Will download 39 files (out of 48) totalling 127.1G.\x1b[0m", Would(39, 48, 127_150_000_000)),
        ("[dry-run] Will download 1 files (out of 2) totalling 179.0.", Would(1, 2, 179)),
        ("[dry-run] Will download 0 files (out of 6) totalling 0.0.", Would(0, 6, 0)),
        ("[dry-run] Will download 6 files (out of 6) totalling an unknown size.", None),
        ("something else", None),
    ],
)
def test_what_a_dry_run_says_is_never_read_as_less(said: str, would: Would | None) -> None:
    assert parse_dry_run(said) == would


#: As hf said it, with 1.0.1, 1.12.2 or 2.4.0, to a Hub of our own; what no run here could bring about is as in its source.
GATED = """\
Traceback (most recent call last):
  File "x.py", line 1, in get
    timeout=10
huggingface_hub.errors.GatedRepoError: 403 Client Error.

Cannot access gated repo for url http://x/config.json.
Access to this model is restricted.
"""
DRY_RUN = """\
httpx2.HTTPStatusError: Client error '404 Not Found' for url 'http://x'
For more information check: https://y

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "y.py", line 1, in raise_for_status
huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error.

Repository Not Found for url: http://x.
If you are trying to access a private or gated repo, make sure you are authenticated.

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
huggingface_hub.errors.DryRunError: Dry run cannot be performed as the repository cannot be accessed.
"""
UNKNOWN_TOKEN = """\
huggingface_hub.errors.HfHubHTTPError: Client error '401 Unauthorized' for url 'http://x'
Invalid credentials in Authorization header
"""
LOCAL = "Error: Local entry not found. "
SAID = {
    "Error: Access denied. Model 'org/x' requires approval.\nHint: set HF_DEBUG=1": "org/x is gated: .* https://hub.example.com/org/x; no token was given",
    GATED: r"org/x is gated: .*\(huggingface_hub.errors.GatedRepoError: 403 Client Error. Cannot access gated repo",
    "Error: Model 'org/x' not found.\nIf the repo is private, make sure": "shows no repository org/x: its name is wrong, or it is private",
    DRY_RUN: r"shows no repository org/x: .*\(huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error. Repository Not Found",
    "Error: Revision not found in model 'org/x'.": f"org/x has no commit {COMMIT}",
    UNKNOWN_TOKEN: "does not know the token",
    LOCAL + "403 Forbidden: .\nCannot access content at: http://x": "refuses org/x; no token was given",
    "Traceback (most recent call last):\nOSError: [Errno 28] No space left on device": "the disk of /srv/hub/models--org--x is full.*Errno 28",
    "OSError: [Errno 30] Read-only file system: '/srv/hub'": "mounted read-only",
    "PermissionError: [Errno 13] Permission denied: '/srv/hub/.locks'": r"may not be written .*chown -R.*'/srv/hub/\.locks'",
    LOCAL + "[Errno -2] Name or service not known": "https://hub.example.com cannot be reached from that node; a proxy",
    LOCAL + "[Errno 111] Connection refused": "cannot be reached",
    LOCAL + "Server error '500 Internal Server Error' for url 'http://x'": "is in trouble itself",
    "httpx2.RemoteProtocolError: peer closed connection without sending complete message body": "broke again and again",
    "httpx2.ConnectError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed": "is not trusted there.*SSL_CERT_FILE",
    "Error: Invalid value. The file is too large to be downloaded using the regular download method.": "hf_xet",
    "Error: 429 Client Error: Too Many Requests for url": "asks for fewer requests",
    "KeyError: 'x'": r"^hf download ended with status 1 \(KeyError: 'x'\)$",
    "": "^hf download ended with status 1$",
}


@pytest.mark.parametrize("said", SAID)
def test_what_it_says_becomes_a_sentence(said: str) -> None:
    told = sentence(ABOUT, 1, said)
    assert re.search(SAID[said], told), told
    assert "Traceback" not in told and "\n" not in told


def test_only_what_may_pass_is_tried_again() -> None:
    passing = [said for said in SAID if _hub.is_passing(said)]
    assert len(passing) == 5 and all(re_said in "".join(passing) for re_said in ("Name or service", "refused", "500", "peer closed", "429"))


def test_a_word_in_the_programs_own_text_means_nothing() -> None:
    said = "Traceback (most recent call last):\n  File \"hf.py\", line 3, in get\n    raise_on(timeout:=3, 'connection refused')\nKeyError: 'x'"
    assert not _hub.is_passing(said) and sentence(ABOUT, 1, said).endswith("(KeyError: 'x')")


def test_a_program_that_was_killed() -> None:
    assert "ended by signal 9" in sentence(ABOUT, -9, "")


def test_with_a_token_it_is_the_token_that_is_asked_about_and_it_is_masked() -> None:
    about = About("org/x", COMMIT, "/srv", token="s3cr3t-value")
    told = sentence(about, 1, "Error: Access denied. Model 'org/x' requires approval. s3cr3t-value hf_abcdefghijklmnopqrstuvwxyz")
    assert "the token's account has to be let in" in told and "https://huggingface.co/org/x" in told
    assert "s3cr3t" not in told and "hf_abc" not in told
