"""The command line of the scripts beside it that print one results file as Markdown."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def main(doc: str, lines: Callable[[str], list[str]]) -> int:
    """Prints the lines made of the file that the only argument names; `doc` is the script's own."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("results")
    print("\n".join(lines(parser.parse_args().results)))
    return 0
