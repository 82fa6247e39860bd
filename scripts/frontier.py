#!/usr/bin/env python3
"""The frontier of error against bits, with intervals, as a Markdown table.

usage: frontier.py RESULTS.h5 --x bits_per_element_hist --value wo_rel [--rows label,group,key.codec.bits] [--kvlab build/bin/kvlab]

A row is on the frontier if no row with no more bits has less error. Beside each member stands what the frontier is less sure of than
it looks: the rows with fewer bits than the next member whose error cannot be told from the member's, paired by passage (95%). Such a
row that holds no more bits could stand in the member's place. Means, intervals and pairs are those of `kvlab table`; where it gives no
intervals nothing stands beside a member. A row that was measured on fewer cells than others is left out: its mean is of other data.
"""

from __future__ import annotations

import argparse
import csv
import math
import subprocess
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    name: str  # as `kvlab table --against` takes it
    bits: float
    error: float
    half: float | None  # of the interval of the mean


class Table:
    """`kvlab table FILE --rows ROWS`, read as CSV."""

    def __init__(self, program: str, path: str, keys: str) -> None:
        self.command, self.keys = [program, "table", path, "--rows", keys, "--format", "csv", "--value"], keys.split(",")

    def read(self, *options: str) -> list[dict[str, str]]:
        done = subprocess.run([*self.command, *options], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"frontier.py: {done.stderr.strip()}")
        return [row | {"name": " / ".join(row[key] for key in self.keys)} for row in csv.DictReader(done.stdout.splitlines())]

    def rows(self, x: str, value: str) -> list[Row]:
        """What was measured, by bits and then by error."""
        found = []
        measured = [row for row in self.read(f"{x},{value}") if row[x] and row[value]]
        cells = [int(row.get(f"{value} cells") or row["cells"]) for row in measured]
        for row, count in zip(measured, cells, strict=True):
            if count < max(cells):
                print(f"frontier.py: left out: {row['name']}: {count} cells, others have {max(cells)}", file=sys.stderr)
            elif not math.isfinite(float(row[value])):
                print(f"frontier.py: left out: {row['name']}: {value} is {row[value]}", file=sys.stderr)
            else:
                low, high = row.get(f"{value} low"), row.get(f"{value} high")
                found.append(Row(row["name"], float(row[x]), float(row[value]), (float(high) - float(low)) / 2 if low and high else None))
        return sorted(found, key=lambda row: (row.bits, row.error))

    def indistinguishable(self, value: str, member: Row) -> set[str] | None:
        """Names of the rows whose paired interval off the member covers zero; None where nothing has one."""
        paired = [row for row in self.read(value, "--against", member.name) if row.get(f"{value} off low")]
        names = {row["name"] for row in paired if float(row[f"{value} off low"]) <= 0 <= float(row[f"{value} off high"])}
        return names if paired else None


def frontier(rows: list[Row]) -> list[Row]:
    members: list[Row] = []
    for row in rows:
        if not members or row.error < members[-1].error:
            members.append(row)
    return members


def alike(table: Table, value: str, rows: list[Row], member: Row, following: Row | None) -> str:
    rivals = [row for row in rows if row != member and (following is None or row.bits < following.bits)]
    names = table.indistinguishable(value, member)
    if names is None:
        return "no pairs: fewer than four passages"
    return "; ".join(f"{row.name} ({row.bits:.3f})" for row in rivals if row.name in names) or "–"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results")
    parser.add_argument("--x", required=True, help="bits, a column of the summary")
    parser.add_argument("--value", required=True, help="an error: less is better")
    parser.add_argument("--rows", default="label,group,key.codec.bits", help="columns that name a row")
    parser.add_argument("--kvlab", default="build/bin/kvlab", help="the program")
    options = parser.parse_args()
    table = Table(options.kvlab, options.results, options.rows)
    rows = table.rows(options.x, options.value)
    members = frontier(rows)
    intervals = all(member.half is not None for member in members)
    print(f"| frontier of {options.value} | {options.x} | {options.value} |" + " not distinguishable from it |" * intervals)
    print("| --- | ---: | ---: |" + " --- |" * intervals)
    for member, following in zip(members, [*members[1:], None], strict=True):
        line = f"| {member.name} | {member.bits:.3f} | {member.error:.4g}"
        if intervals:
            line += f" ±{member.half:.2g} | {alike(table, options.value, rows, member, following)}"
        print(line + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
