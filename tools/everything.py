# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""`make test`: everything that CI runs, with one table at the end. A failed step does not keep the others from running."""

from __future__ import annotations

from tools import environments, lab, lint, sanity, system_packages, units
from tools.console import main, say, summary

PACKAGES = ("git",)


def _run() -> int:
    say("make test: environments below .build, collections below .collections, slow things once in the user's cache;")
    say("lint, sanity and units change nothing else; the lab says itself what it installs and creates.")
    system_packages.ensure(PACKAGES, "make test")
    environments.install_prerequisites()
    # Making the lab's root file system and engine takes as long as all of these, and mostly waits for downloads and disks.
    with lab.preparation(environments.development()) as preparing:
        outcomes = [*lint.steps([]), *units.steps([]), *sanity.steps([])]
        return summary([*outcomes, *lab.steps(preparing=preparing)])


if __name__ == "__main__":
    main(_run)
