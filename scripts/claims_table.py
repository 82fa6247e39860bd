#!/usr/bin/env python3
"""What `kvlab claims FILE.h5 --json` prints, as the Markdown table of the README.

usage: kvlab claims results/claims.h5 --json | claims_table.py
       kvlab claims results/claims_switches.h5 --json | claims_table.py --switches

A ratio is the error of what the sentence names first over that of what it names second, with its 95% interval; one column for
each text by itself. A verdict names the pairs of rows that say the opposite. A star
marks whole methods as their sources run them, which differ in more than one setting.

With --switches one column for each switch that both labels of a pair of rows name behind a comma ("hadamard, float zero"): bold
where the interval lies wholly on the other side of 1 than that of the rows without a switch.
"""

from __future__ import annotations

import json
import math
import sys


def ratio_text(found: dict | None) -> str:
    """Of a claim, or of its part of one text."""
    if found is None or found["ratio"] is None:
        return "–"
    low, high = found["interval"]
    if low is None:
        return f"{found['ratio']:.3f}"
    return f"{found['ratio']:.3f} [{math.exp(low):.3f}, {math.exp(high):.3f}]"


def verdict_text(claim: dict) -> str:
    known = [word for word in ("no effect by algebra", "not distinguishable") if word in claim["reason"]]
    if claim["verdict"] == "undecided":
        verdict = known[0] if known else f"undecided: {claim['reason']}"
    else:
        verdict = "**reversed**" if claim["verdict"] == "reversed" else claim["verdict"]
    flipped = [f"{part['name']} {ratio_text(part)}" for part in claim["by_rows"] if part["flipped"]]
    return verdict + ("; the other way round in " + ", ".join(flipped) if flipped else "")


def texts_of(claims: list[dict]) -> list[str]:
    return list(dict.fromkeys(part["name"] for claim in claims for part in claim["by_text"]))


def line(claim: dict, texts: list[str]) -> str:
    claimed = {"lower": "< 1", "higher": "> 1"}.get(claim["claimed"]) or f"1 ± {claim['within']:g}"
    metric = "" if claim["metric"] == "wo_rel" else f" (`{claim['metric']}`)"
    star = "*" if claim["differing"] else ""
    by_text = {part["name"]: part for part in claim["by_text"]}
    return "| " + " | ".join([claim["sentence"].rstrip(".") + metric + star, claim["source"], claimed, ratio_text(claim),
                              *(ratio_text(by_text.get(text)) for text in texts), verdict_text(claim)]) + " |"  # fmt: skip


def switch_of(pair: str) -> str | None:
    """ "a, s over b, s" -> "s", "a over b" -> "", and nothing for rows of two switches."""
    left, _, right = (side.partition(", ")[2] for side in pair.partition(" over "))
    return left if left == right else None


def side_of(part: dict | None) -> int:
    """1 above 1, -1 below it, 0 where the interval does not say."""
    if part is None or part["interval"][0] is None:
        return 0
    low, high = part["interval"]
    return (low > 0) - (high < 0)


def print_switches(claims: list[dict]) -> None:
    found = [(claim, {switch_of(part["name"]): part for part in claim["by_rows"]}) for claim in claims]
    found = [(claim, parts) for claim, parts in found if "" in parts and len(parts) > 1]
    switches = list(dict.fromkeys(switch for _, parts in found for switch in parts if switch))
    print("| sentence | as their sources run | " + " | ".join(switches) + " |\n|" + " --- |" * (len(switches) + 2))
    for claim, parts in found:
        flips = [side_of(parts.get(switch)) * side_of(parts[""]) < 0 for switch in switches]
        texts = [ratio_text(parts.get(switch)) for switch in switches]
        marked = [f"**{text}**" if flip else text for text, flip in zip(texts, flips)]
        print("| " + " | ".join([claim["sentence"].rstrip("."), ratio_text(parts[""]), *marked]) + " |")


def main() -> int:
    try:
        claims = json.load(sys.stdin)
    except ValueError:
        print("claims_table.py: expected what `kvlab claims FILE.h5 --json` prints", file=sys.stderr)
        return 2
    if "--switches" in sys.argv[1:]:
        print_switches(claims)
        return 0
    texts = texts_of(claims)
    headings = ["sentence", "source", "claimed", "measured ratio [95%]", *texts, "verdict"]
    print("| " + " | ".join(headings) + " |\n|" + " --- |" * len(headings))
    for claim in claims:
        print(line(claim, texts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
