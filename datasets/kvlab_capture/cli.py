"""What all scripts in this folder share at the command line: one-sentence errors, exit code 2, no traceback."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

EXIT_OK = 0
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130


class UserError(Exception):
    """Something in the command or in a file is wrong; the message is one sentence that says what was expected."""


class OneLineParser(argparse.ArgumentParser):
    """argparse, but a mistake is one line: the usage text would bury it."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_BAD_INPUT, f"{self.prog}: error: {message} (--help shows the usage)\n")


def counted(count: int, noun: str) -> str:
    """Number and noun: 1 token, 2 tokens."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def note(message: str) -> None:
    """Progress: stderr, so that stdout holds results only."""
    print(message, file=sys.stderr, flush=True)


def warn(message: str) -> None:
    note(f"warning: {message}")


def positive(text: str) -> int:
    """An argparse type: a whole number of at least 1."""
    return _whole_number(text, 1)


def not_negative(text: str) -> int:
    """An argparse type: a whole number of at least 0."""
    return _whole_number(text, 0)


def _whole_number(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least {least}, got {text!r}")
    return value


def first_line(error: BaseException) -> str:
    """The first line of somebody else's error message, for a sentence of ours; its type where there is no message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__


def run(main: Callable[[], int]) -> NoReturn:
    """Runs `main` as a program: a UserError becomes a line on stderr and exit code 2, Ctrl-C exit code 130."""
    program = Path(sys.argv[0]).name
    ended: list[int] = []

    def end(number: int, _frame: object) -> None:
        """Unwinds, so that files are cleaned up; what the libraries on the way say of that is no news."""
        ended.append(128 + number)
        sys.unraisablehook = lambda _what: None
        sys.exit(ended[0])

    signal.signal(signal.SIGTERM, end)
    try:
        code = main()
    except UserError as error:
        if not ended:
            print(f"{program}: error: {error}", file=sys.stderr)
        code = ended[0] if ended else EXIT_BAD_INPUT
    except KeyboardInterrupt:
        print(f"{program}: interrupted, nothing half-written was left", file=sys.stderr)
        code = EXIT_INTERRUPTED
    except BaseException:
        if not ended:
            raise
        code = ended[0]
    sys.exit(code)
