#!/usr/bin/env python3
"""Writes public-domain texts as plain files: Jane Austen's six novels and the Jargon File."""

from __future__ import annotations

import argparse
import gzip
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from kvlab_capture import cli, debian, rdata
from kvlab_capture.atomic import whole_file
from kvlab_capture.cli import UserError
from kvlab_capture.reflow import reflow

FOLDER = Path(__file__).resolve().parent
CACHE = FOLDER / "cache"

AUSTEN = ("r-cran-janeaustenr", "usr/lib/R/site-library/janeaustenr/data/Rdata.rdx")
JARGON = ("jargon-text", "usr/share/doc/jargon-text/jargon.txt.gz")
NOVELS = ("emma", "mansfieldpark", "northangerabbey", "persuasion", "prideprejudice", "sensesensibility")

EXAMPLES = """
The texts come from the Debian packages r-cran-janeaustenr and jargon-text: from their installed files, else from the
cache folder, else apt-get downloads them (2.3 MB) into it. Nothing is installed, R is not needed, and with the cache
filled no network either. Files that are there already are left alone.

examples:
  python datasets/texts.py
  python datasets/texts.py --out /tmp/texts --cache /tmp/debs
"""


def write_all(out: Path, cache: Path) -> list[Path]:
    """Writes austen_NOVEL.txt and jargon.txt into `out`, those that are missing; returns all their paths."""
    groups: list[tuple[tuple[str, ...], Callable[[Path], dict[str, str]]]] = [
        (tuple(f"austen_{novel}.txt" for novel in NOVELS), _austen),
        (("jargon.txt",), _jargon),
    ]
    out.mkdir(parents=True, exist_ok=True)
    for names, make in groups:
        missing = [name for name in names if not (out / name).is_file()]
        if missing:
            texts = make(cache)
            for name in missing:
                with whole_file(out / name) as path:
                    path.write_text(texts[name], encoding="utf-8", newline="\n")
    return [out / name for names, _ in groups for name in names]


def _austen(cache: Path) -> dict[str, str]:
    index = debian.package_file(*AUSTEN, cache)
    novels = rdata.read_lazy_load(index.with_suffix(""))
    lacking = [novel for novel in NOVELS if novel not in novels]
    if lacking:
        raise UserError(f"{index} lacks the novel {lacking[0]}")
    return {f"austen_{novel}.txt": reflow(novels[novel]) for novel in NOVELS}


def _jargon(cache: Path) -> dict[str, str]:
    packed = debian.package_file(*JARGON, cache)
    try:
        return {"jargon.txt": reflow(_lines(packed))}
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise UserError(f"{packed} is no gzip file of UTF-8 text") from error


def _lines(packed: Path) -> Iterator[str]:
    with gzip.open(packed, "rt", encoding="utf-8") as lines:
        yield from lines


def main(argv: list[str] | None = None) -> int:
    parser = cli.OneLineParser(
        prog="texts.py", description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=CACHE / "texts", help="folder for the .txt files (datasets/cache/texts)"
    )
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder for downloaded packages (datasets/cache)")
    options = parser.parse_args(argv)
    for path in write_all(options.out, options.cache):
        print(f"{path}  {path.stat().st_size:,} bytes")
    return cli.EXIT_OK


if __name__ == "__main__":
    cli.run(lambda: main(sys.argv[1:]))
