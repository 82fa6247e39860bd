"""kvplot: draws a results file, or makes its report.

  kvplot results/demo.h5 --kind pareto                        pareto.png, for one column of a paper
  kvplot results/demo.h5 --kind heads --only kivi --out heads.pdf --width text
  kvplot report results/demo.h5 --out report.html
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from kvlab_results import Refused, read

from kvplot import kinds
from kvplot.choice import Choice, known


def main(argv: Sequence[str] | None = None) -> int:
    """0: done; 2: the command or the file is wrong, and nothing was written; 130: interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was begun is cleared away
        sys.stdout.reconfigure(errors="backslashreplace")  # a file's name may be no UTF-8
        warnings.formatwarning = lambda message, *_args, **_keys: f"kvplot: warning: {message}\n"
    try:
        if arguments[:1] == ["report"]:
            return _report(arguments[1:])
        return _picture(arguments)
    except Refused as error:
        print(f"kvplot: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # as of `kvplot … | head -1`; the file is there by then
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("kvplot: interrupted", file=sys.stderr)
        return 130


def _picture(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("kvplot", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="kinds, and what a file must hold for them:\n" + _kinds())
    parser.add_argument("file", metavar="FILE.h5", help="a kvlab.results file")
    parser.add_argument("--kind", required=True, help="what is drawn, see below")
    parser.add_argument("--out", metavar="F", type=Path, help="a .png, .svg or .pdf, by default KIND.png; its folder is made")
    parser.add_argument("--width", choices=("column", "text"), default="column", help="of a paper with two columns")
    parser.add_argument("--value", metavar="METRIC", help="the metric that is drawn")
    parser.add_argument("--x", metavar="NAME", help="what it is drawn against: a metric; for heat a sweep's axis, for means any "
                        "column, or part: the number that ends a label")
    parser.add_argument("--only", metavar="LABEL", action="append", default=[], help="these labels alone")
    parser.add_argument("--where", metavar="COLUMN=VALUE", action="append", default=[], help="these rows alone")
    parser.add_argument("--side", choices=("key", "value"), default="key", help="for errors and norms by token")
    parser.add_argument("--bandwidth", metavar="GB/s", type=float, help="the roofline's, where the file has none")
    asked = parser.parse_args(arguments)

    known(asked.kind, list(kinds.ALL), "there is no kind")
    out = asked.out or Path(f"{asked.kind}.png")
    _check(out, ".png", ".svg", ".pdf")
    for condition in asked.where:
        if "=" not in condition:
            raise Refused(f"--where {condition}: expected COLUMN=VALUE")
    if asked.bandwidth is not None and not asked.bandwidth > 0:
        raise Refused(f"--bandwidth {asked.bandwidth:g}: expected gigabytes a second above 0")
    choice = Choice(asked.value, asked.x, tuple(asked.only), tuple(tuple(c.split("=", 1)) for c in asked.where), asked.side,
                    asked.bandwidth and asked.bandwidth * 1e9)
    figure = kinds.ALL[asked.kind].figure(read(asked.file), choice)

    from kvplot import paper  # matplotlib takes a second to load, which a refusal need not wait for
    _write(out, paper.draw(figure, out.suffix[1:], asked.width))
    print(f"{out}: {figure.title}" + (f" ({figure.caption})" if figure.caption else ""))
    return 0


def _report(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("kvplot report", description="Makes one page of a results file that opens from disk, "
                                     "without a network: tables, pictures, and every cell's configuration.")
    parser.add_argument("file", metavar="FILE.h5", help="a kvlab.results file")
    parser.add_argument("--out", metavar="F", type=Path, default=Path("report.html"), help="by default report.html")
    asked = parser.parse_args(arguments)
    _check(asked.out, ".html")

    from kvplot.report.page import page
    text, missing = page(read(asked.file), asked.file)
    _write(asked.out, text.encode())
    print(f"{asked.out}: {len(text) / 1e6:.1f} MB; open it in a browser")
    for sentence in missing:
        print(f"  not in it: {sentence}")
    return 0


def _check(out: Path, *suffixes: str) -> None:
    if out.suffix not in suffixes:
        raise Refused(f"{out}: expected a name that ends in {' or '.join(suffixes)}")
    if out.is_dir():
        raise Refused(f"{out}: expected a file to write, found a folder")


def _write(out: Path, content: bytes) -> None:
    """In one step, so that no half picture is left behind. Its folder is made, as kvlab makes those of its files."""
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content)
        part.replace(out)
    except OSError as error:
        raise Refused(f"{out}: cannot be written: {error.strerror}") from None
    finally:
        with contextlib.suppress(OSError):  # where its folder is none
            part.unlink(missing_ok=True)


def _kinds() -> str:
    return "\n".join(f"  {name:12} {module.TITLE:36} {module.NEEDS}" for name, module in kinds.ALL.items())


if __name__ == "__main__":
    sys.exit(main())
