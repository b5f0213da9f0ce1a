# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an Ollama has loaded, and how long it would keep it: it is in no file, and is gone with its process.

PRIVATE to the collection: this file can change at any time, do not import it from elsewhere.

Clients say with each request how long a model stays (keep_alive), so that this alone tells what there was. It is told, and not
loaded again: the next request does that, and until then the memory is somebody else's.
"""

from __future__ import annotations

import http.client
import time
import typing as t

from ansible_collections.unimem.dgx_spark.plugins.module_utils._child import start_function
from ansible_collections.unimem.dgx_spark.plugins.module_utils._json import parse_json

#: The name of its processes, the server's and the runners'.
NAME = "ollama"

#: Seconds for all of the answers. It is only a note: what is to be stopped may well hang.
SECONDS = 2.0

_MAX_ANSWER, _MAX_PORTS = 256 * 1024, 8

#: "Keep it for good" is an end in some 292 years.
_FOR_GOOD = 2200


def read_loaded(ports: t.Iterable[int], seconds: float = SECONDS) -> list[dict[str, str]]:
    """The models that an Ollama behind one of this node's ports has loaded, each with ``model`` and ``until``. Empty where nobody says."""
    tried = sorted(ports)[:_MAX_PORTS]
    if not tried:
        return []
    # A deadline of a connection begins anew with each byte; that of a child does not.
    outcome = start_function(lambda: {"loaded": [row for port in tried for row in _ask(port, seconds)]}, time.monotonic() + seconds).finish()
    try:
        return list(parse_json(outcome.stdout)["data"]["loaded"])
    except (KeyError, TypeError, ValueError):
        return []


def _ask(port: int, seconds: float) -> list[dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        connection.request("GET", "/api/ps")
        answer = connection.getresponse()
        return parse_loaded(answer.read(_MAX_ANSWER).decode("utf-8", "replace")) if answer.status == 200 else []
    except (OSError, http.client.HTTPException):
        return []
    finally:
        connection.close()


def parse_loaded(text: str) -> list[dict[str, str]]:
    """The answer to ``/api/ps``. Anybody may answer there, so that what makes no sense is left out."""
    try:
        models = parse_json(text)["models"]
        rows = [(row["name"], row.get("expires_at")) for row in models]
    except (AttributeError, KeyError, TypeError, ValueError):
        return []
    return [
        {"model": name[:200], "until": end[:40] if isinstance(end, str) else ""} for name, end in rows[:100] if isinstance(name, str) and name.isprintable()
    ]


def describe_loaded(loaded: t.Iterable[t.Mapping[str, str]]) -> str:
    """For people."""
    return ", ".join(f"{row['model']} ({_until(row.get('until', ''))})" for row in loaded)


def _until(end: str) -> str:
    year = end[:4]
    if year.isdecimal() and int(year) >= _FOR_GOOD:
        return "kept for good"
    return f"kept until {end}" if year.isdecimal() and end.isprintable() else "for how long is not known"
