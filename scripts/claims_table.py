#!/usr/bin/env python3
"""What `kvlab claims FILE.h5 --json` prints, as the Markdown table of the README.

usage: kvlab claims results/claims.h5 --json | claims_table.py

A ratio is the error of what the sentence names first over that of what it names second, with its 95% interval; a star
marks whole methods as their sources run them, which differ in more than one setting.
"""

from __future__ import annotations

import json
import math
import sys


def ratio_text(claim: dict) -> str:
    if claim["ratio"] is None:
        return "–"
    low, high = claim["interval"]
    if low is None:
        return f"{claim['ratio']:.3f}"
    return f"{claim['ratio']:.3f} [{math.exp(low):.3f}, {math.exp(high):.3f}]"


def verdict_text(claim: dict) -> str:
    if claim["verdict"] == "reversed":
        return "**reversed**"
    if claim["verdict"] == "upheld":
        return "upheld"
    for known in ("no effect by algebra", "not distinguishable"):
        if known in claim["reason"]:
            return known
    return f"undecided: {claim['reason']}"


def line(claim: dict) -> str:
    claimed = {"lower": "< 1", "higher": "> 1"}.get(claim["claimed"]) or f"1 ± {claim['within']:g}"
    metric = "" if claim["metric"] == "wo_rel" else f" (`{claim['metric']}`)"
    star = "*" if claim["differing"] else ""
    return (f"| {claim['sentence'].rstrip('.')}{metric}{star} | {claim['source']} | {claimed} | {ratio_text(claim)} "
            f"| {verdict_text(claim)} |")  # fmt: skip


def main() -> int:
    print("| sentence | source | claimed | measured ratio [95%] | verdict |\n| --- | --- | --- | --- | --- |")
    for claim in json.load(sys.stdin):
        print(line(claim))
    return 0


if __name__ == "__main__":
    sys.exit(main())
