# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.unimem.dgx_spark.plugins.module_utils._mask import CUT, MASK, MAX_LENGTH, is_secret_name, mask_argv, mask_command

SECRET = "Zq7hunter2value"


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["vllm", "serve", "--api-key", SECRET, "--port", "8000"], ["vllm", "serve", "--api-key", MASK, "--port", "8000"]),
        (["vllm", "serve", "--api-key", SECRET, "second", "--port", "8000"], ["vllm", "serve", "--api-key", MASK, MASK, "--port", "8000"]),
        (["x", f"--hf-token={SECRET}"], ["x", f"--hf-token={MASK}"]),
        (["env", f"HF_TOKEN={SECRET}", "vllm"], ["env", f"HF_TOKEN={MASK}", "vllm"]),
        (["docker", "run", "-e", f"AWS_SECRET_ACCESS_KEY={SECRET}", "image"], ["docker", "run", "-e", f"AWS_SECRET_ACCESS_KEY={MASK}", "image"]),
        (["curl", "-u", f"alice:{SECRET}", "http://host/"], ["curl", "-u", MASK, "http://host/"]),
        (["sshpass", f"-p{SECRET}", "ssh", "host"], ["sshpass", f"-p{MASK}", "ssh", "host"]),
        (["x", f"http://alice:{SECRET}@host:80/path"], ["x", f"http://{MASK}@host:80/path"]),
        (["x", f"https://host/path?token={SECRET}&page=2"], ["x", f"https://host/path?token={MASK}&page=2"]),
        (["x", f'{{"api_key": "{SECRET}", "model": "m"}}'], ["x", f'{{"api_key": "{MASK}", "model": "m"}}']),
        (["x", "hf_AbCdEfGhIjKlMnOpQrSt"], ["x", MASK]),
        (["x", f"http://alice:a@b{SECRET}@host/"], ["x", f"http://{MASK}@host/"]),
        (["x", f"9token={SECRET}", f"a.password={SECRET}", f"é-token={SECRET}"], ["x", f"9token={MASK}", f"a.password={MASK}", f"é-token={MASK}"]),
        (["x", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", "eyJhbGciOiJIUzI1NiJ9"], ["x", MASK, MASK]),
        (["x", "--password", f"-{SECRET}"], ["x", "--password", MASK]),
        # A process that wrote its title over its command line left one string, and empty words.
        ([f"serve --password {SECRET} --port 1", "", ""], [f"serve --password {MASK} --port 1", "", ""]),
    ],
)
def test_secrets_are_masked(argv: list[str], expected: list[str]) -> None:
    assert mask_argv(argv) == expected


@pytest.mark.parametrize("header", [f"Authorization: Bearer {SECRET}", f"Cookie: session={SECRET}; other={SECRET}", f"X-Api-Key: {SECRET}"])
def test_headers_are_masked(header: str) -> None:
    assert SECRET not in " ".join(mask_argv(["curl", "-H", header]))


@pytest.mark.parametrize(
    "argv",
    [
        ["vllm", "serve", "/models/Qwen", "--max-num-batched-tokens", "8192", "--tokenizer", "/models/t", "--tokenizer-mode", "auto"],
        ["VLLM::EngineCore"],
        ["llama-server", "-m", "model.gguf", "--ctx-size", "4096", "-ngl", "99"],
        ["x", "--ssl-keyfile", "/etc/ssl/key.pem", "--api-key-file", "/run/secrets/key"],
        ["x", "--max-tokens", "100", "MAX_TOKENS=5", "--kv-cache-dtype", "fp8_e4m3"],
        ["x", "--enable-auth", "--port", "80"],
    ],
)
def test_what_is_no_secret_stays(argv: list[str]) -> None:
    assert mask_argv(argv) == argv


@pytest.mark.parametrize(
    "name",
    [
        *("--api-key", "HF_TOKEN", "apiKey", "OPENAI_API_KEY", "db_password", "--private-key", "clientSecret"),
        *("PGPASSWORD", "SSHPASS", "AUTHTOKEN", "OPENAI_KEY", "--key"),
    ],
)
def test_secret_names(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["key", "sort_key", "--key-file", "tokens", "--tokenizer", "max_tokens", "--token-file", "keyboard", "monkey", "", "--"])
def test_other_names(name: str) -> None:
    assert not is_secret_name(name)


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12) | st.sampled_from(
    [
        "--api-key",
        "--hf-token=x",
        "PASSWORD=a b",
        "-p",
        "sshpass",
        "curl",
        "-u",
        "http://a:b@c/?key=d",
        "Authorization: Basic abcdefgh",
        '"token": "x"',
        "Cookie:",
    ]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(WORDS, max_size=6))
def test_masking_twice_is_masking_once(argv: list[str]) -> None:
    once = mask_argv(argv)
    assert len(once) == len(argv)
    assert mask_argv(once) == once
    text = mask_command(" ".join(argv))
    assert mask_command(text) == text


@settings(max_examples=80, deadline=None)
@given(st.lists(st.sampled_from(["--model", "m", "--port", "80"]), max_size=4), st.sampled_from(["--api-key", "--password", "--hf-token"]), st.booleans())
def test_no_secret_option_leaks(before: list[str], option: str, joined: bool) -> None:
    argv = ["prog", *before, *([f"{option}={SECRET}"] if joined else [option, SECRET])]
    assert SECRET not in " ".join(mask_argv(argv))
    assert SECRET not in mask_command(" ".join(argv))


def test_a_long_command_line_is_cut_at_a_word_and_stays_so() -> None:
    once = mask_argv(["x", *["y" * 100] * 1000, "--api-key", SECRET])
    assert once[-1] == CUT
    assert sum(len(word) + 1 for word in once[:-1]) <= MAX_LENGTH
    assert mask_argv(once) == once
    assert mask_argv(["x", "z" * (MAX_LENGTH + 1)]) == ["x", CUT]


@pytest.mark.parametrize("unit", ["a", "-", "a=", 'a="', "a:", " ", "://", "a://", "?a=", "eyJaaaaaaaa", "-a ", "A", "aA", "cookie ", "bearer ", "'a', "])
def test_no_command_line_takes_long_to_look_through(unit: str) -> None:
    """Any process can write anything there, and root reads it."""
    text = unit * (MAX_LENGTH // len(unit) - 1)
    started = time.process_time()
    mask_command(text)
    mask_argv(["x", text])
    mask_argv(["x", "-" + text])
    assert time.process_time() - started < 20  # quadratic takes minutes


@pytest.mark.parametrize(
    ("argv", "masked"),
    [
        (["fetch", "--user", "bob:hunter2", "x"], ["fetch", "--user", f"bob:{MASK}", "x"]),
        (["fetch", "--proxy-user", "bob:a:b"], ["fetch", "--proxy-user", f"bob:{MASK}"]),
        (["docker", "run", "--user", "1000:1000"], ["docker", "run", "--user", "1000:1000"]),
        (["serve", "--user", "bob"], ["serve", "--user", "bob"]),
    ],
)
def test_logins(argv: list[str], masked: list[str]) -> None:
    assert mask_argv(argv) == masked
    assert mask_command(" ".join(argv)) == " ".join(masked)
