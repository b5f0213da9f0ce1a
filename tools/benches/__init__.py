# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What `make bench` measures, one subject a file.

A subject has ``measure(environment, rounds) -> None``, which prints one table or several, with ratios to a baseline of the same run
(tools/timing.py helps). The lab is up, in the seed's situation, unless the subject says ``NEEDS_LAB = False``. The first line of
its docstring is what `make bench ARGS=--list` says of it. It leaves the lab as it found it.
"""
