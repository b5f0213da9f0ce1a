# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""Secrets in command lines are masked before anything is returned, recorded or logged.

In doubt too much is masked. Masking twice gives the same as masking once, so that a recorded node replays to the same facts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

MASK = "********"
#: Stands for the rest of a text that is too long to look through. Every process chooses its own command line, up to megabytes.
CUT = "…"
MAX_LENGTH = 16384

#: Words that make the name of an option or variable secret. ``tokens`` and ``tokenizer`` are other words than ``token``.
_SECRET_WORDS = frozenset(
    {
        "accesskey",
        "auth",
        "authkey",
        "authorization",
        "bearer",
        "cookie",
        "credential",
        "credentials",
        "jwt",
        "pat",
        "privatekey",
        "psk",
        "pw",
        "pwd",
        "secretkey",
        "secrets",
    }
)
#: Alone, or written as one word with another: PGPASSWORD, SSHPASS, AUTHTOKEN.
_SECRET_ENDS = ("apikey", "pass", "passphrase", "passwd", "password", "secret", "token")
#: ``key`` alone is no secret (``--key-file``, ``sort_key``); after one of these words it is.
_KEY_OWNERS = frozenset(
    {
        "access",
        "account",
        "api",
        "app",
        "auth",
        "client",
        "deploy",
        "encryption",
        "license",
        "master",
        "private",
        "secret",
        "service",
        "session",
        "sign",
        "signing",
        "ssh",
        "storage",
    }
)
#: Words after which a name speaks about a secret but holds none: a file, a length, a switch.
_HARMLESS_LAST = frozenset({"count", "dir", "file", "id", "len", "length", "limit", "mode", "name", "num", "path", "size", "timeout", "ttl", "type", "url"})

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+|[A-Z0-9]+")

#: Values that are secrets whatever stands before them.
_SHAPES = re.compile(
    r"""(?<![A-Za-z0-9])(?:
      hf_[A-Za-z0-9]{16,}
    | sk-[A-Za-z0-9_-]{16,}
    | nvapi-[A-Za-z0-9_-]{16,}
    | gh[pousr]_[A-Za-z0-9]{16,} | github_pat_[A-Za-z0-9_]{16,} | glpat-[A-Za-z0-9_-]{16,}
    | xox[abposr]-[A-Za-z0-9-]{10,}
    | (?:AKIA|ASIA)[A-Z0-9]{12,}
    | AIza[A-Za-z0-9_-]{20,}
    | eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*){0,2}
    )""",
    re.VERBOSE,
)
#: All of these run in linear time over any text: a run of letters is looked at once (bounded, or from its start only).
_URL_CREDENTIALS = re.compile(r"(://)[^/\s'\"]+@")
_URL_QUERY = re.compile(r"([?&;])([A-Za-z0-9_.-]+)=([^&;\s'\"]*)")
_SCHEME = re.compile(r"\b(bearer|basic|digest)(\s+)(?!\*)([A-Za-z0-9+/=._~-]{6,})", re.IGNORECASE)
_HEADER = re.compile(r"\b((?:proxy-)?authorization|(?:set-)?cookie)(\s*:\s*)(?=\S)([^'\"\n]+)", re.IGNORECASE)
#: NAME=value, "name": "value", name: 'value' anywhere in a text, and --name value in a text with blanks.
_PAIR = re.compile(
    r"""(?P<name>(?<![A-Za-z0-9_.-])[A-Za-z0-9_.-]+)(?P<between>["']?\s*[=:]\s*|["']\s*,\s*)(?P<value>"[^"]*"|'[^']*'|[^\s"',}&;]+)""",
)
_OPTION = re.compile(r"""(?P<name>(?<![^\s"'])--?[A-Za-z][A-Za-z0-9_.-]*)(?P<between>\s+)(?P<value>"[^"]*"|'[^']*'|(?!--)[^\s]+)""")

#: Programs whose short options take a secret; the names are those of argv[0].
_SHORT_OPTIONS = {"curl": ("-u",), "redis-cli": ("-a",), "sshpass": ("-p",), "wget": (), "mysql": ("-p",), "mysqldump": ("-p",)}


#: Options whose value is a login, ``name:password``; ``uid:gid`` is none.
_LOGIN_OPTIONS = ("--user", "--proxy-user", "--credentials", "--login")
_LOGIN = re.compile(r"([^:\s]{1,256}):(?!\d+$)(\S+)")


def is_secret_name(name: str) -> bool:
    """Whether an option, variable or key of this name holds a secret: ``--hf-token`` does, ``--max-tokens`` and ``--tokenizer`` do not."""
    words = [word.lower() for word in _WORD.findall(name.lstrip("0123456789."))]
    if not words or (len(words) > 1 and words[-1] in _HARMLESS_LAST):
        return False
    if any(word in _SECRET_WORDS or word.endswith(_SECRET_ENDS) for word in words):
        return True
    # OPENAI_KEY of an environment, and --key that says nothing more.
    if words[-1] == "key" and (name.isupper() or name == "--key"):
        return True
    return any(word in ("key", "keys") and before in _KEY_OWNERS for before, word in zip(words, words[1:]))


def _masked_value(value: str) -> str:
    quote = value[:1] if value[:1] in ("'", '"') and value[-1:] == value[:1] and len(value) > 1 else ""
    return f"{quote}{MASK}{quote}"


def _mask_login(word: str) -> str:
    return _LOGIN.sub(rf"\g<1>:{MASK}", word)


def _mask_if_secret(match: re.Match[str]) -> str:
    if match["name"] in _LOGIN_OPTIONS:
        return f"{match['name']}{match['between']}{_mask_login(match['value'])}"
    if not is_secret_name(match["name"]) or match["value"].startswith("//"):
        return match[0]
    return f"{match['name']}{match['between']}{_masked_value(match['value'])}"


def _mask_query(match: re.Match[str]) -> str:
    name = match[2]
    if is_secret_name(name) or name.lower() in ("sig", "signature", "key") or name.lower().endswith("-signature"):
        return f"{match[1]}{name}={MASK}"
    return match[0]


def mask_command(text: str) -> str:
    """Mask the secrets in a text, such as a command line that its process wrote as one string. What is too long is left out."""
    if len(text) > MAX_LENGTH:
        return CUT
    text = _URL_CREDENTIALS.sub(rf"\g<1>{MASK}@", text)
    text = _URL_QUERY.sub(_mask_query, text)
    text = _HEADER.sub(rf"\g<1>\g<2>{MASK}", text)
    text = _SCHEME.sub(rf"\g<1>\g<2>{MASK}", text)
    text = _OPTION.sub(_mask_if_secret, text)
    text = _PAIR.sub(_mask_if_secret, text)
    return _SHAPES.sub(MASK, text)


def mask_argv(argv: Sequence[str]) -> list[str]:
    """Mask the secrets in the words of a command line: a secret option's value may be the next word, or several (``--api-key a b``).

    Words beyond 16384 characters in all are left out, and an ellipsis says so.
    """
    masked: list[str] = []
    length = 0
    for word in _masked_words(argv):
        length += len(word) + 1
        if length > MAX_LENGTH:
            masked.append(CUT)
            break
        masked.append(word)
    return masked


def _masked_words(argv: Sequence[str]) -> Iterator[str]:
    short = _SHORT_OPTIONS.get(os.path.basename(argv[0]), ()) if argv else ()
    hiding = ""
    for position, word in enumerate(argv):
        if hiding and word and (not word.startswith("-") or (hiding != "more" and not word.startswith("--"))):
            # The last words of a command line are empty when its process overwrote it; those stay.
            hiding = "" if hiding == "one" else "more"
            yield MASK
            continue
        hiding = ""
        if position > 1 and argv[position - 1] in _LOGIN_OPTIONS:
            yield mask_command(_mask_login(word))
            continue
        if len(word) <= MAX_LENGTH and position and word.startswith("-") and "=" not in word and not any(blank in word for blank in " \t\n"):
            if word in short or is_secret_name(word):
                hiding = "one" if word in short else "first"
                yield word
                continue
            glued = next((option for option in short if word.startswith(option) and not word.startswith("--")), None)
            if glued:
                yield glued + MASK
                continue
        yield mask_command(word)
