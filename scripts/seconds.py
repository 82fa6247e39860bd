#!/usr/bin/env python3
"""Cells and seconds of results files, as a Markdown table with their sum.

usage: seconds.py RESULTS.h5...

Seconds are each cell's own, by the clock, of the run that computed it; those of calibration are in the first cell that waits for it.
A machine that does other things beside makes them longer.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from results_io import open_results


def read(path: str) -> tuple[int, float]:
    with open_results(path) as file:
        seconds = [float(cell.attrs["seconds"]) for cell in file["cells"].values()]
    return len(seconds), sum(seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="+")
    found = {Path(path).stem: read(path) for path in parser.parse_args().results}
    found["together"] = (sum(cells for cells, _ in found.values()), sum(seconds for _, seconds in found.values()))
    print("| experiment | cells | seconds |\n| --- | ---: | ---: |")
    for name, (cells, seconds) in found.items():
        print(f"| {name} | {cells} | {seconds:.0f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
