"""The program under test as a process: what a user types, and what comes back."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

# Words that only a stack trace or a library's own message brings.
TRACES = ("terminate called", "what():", "backtrace", "frame #", "Traceback", "HDF5-DIAG", "core dumped", "c10::")


def program_path() -> Path:
    """KVLAB_PROGRAM (ctest sets it), by default what the set-up scripts build."""
    return Path(os.environ.get("KVLAB_PROGRAM", REPOSITORY / "build/bin/kvlab")).resolve()


@dataclass(frozen=True)
class Outcome:
    """One finished command."""

    code: int
    out: str
    err: str

    @property
    def mistakes(self) -> list[str]:
        """The lines of an error message, each one mistake, without the program's name."""
        return [line.removeprefix("kvlab: ") for line in self.err.splitlines()]


class Kvlab:
    """Runs `kvlab` in one folder; relative paths in experiments and arguments mean that folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *arguments: object, cwd: Path | None = None, timeout: float = 300, **environment: str) -> Outcome:
        """Runs a command to its end."""
        done = subprocess.run(
            self._argv(arguments),
            cwd=cwd or self.folder,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    def ok(self, *arguments: object, cwd: Path | None = None) -> Outcome:
        """Runs a command that has to succeed."""
        outcome = self(*arguments, cwd=cwd)
        assert outcome.code == 0, f"{arguments}: exit {outcome.code}\n{outcome.err}"
        return outcome

    def refused(self, *arguments: object, cwd: Path | None = None, **environment: str) -> Outcome:
        """Runs a command that has to be refused: exit 2, a plain message, nothing on stdout, no file left behind."""
        folder = cwd or self.folder
        before = contents(folder)
        outcome = self(*arguments, cwd=cwd, **environment)
        assert outcome.code == 2, f"{arguments}: exit {outcome.code}\n{outcome.out}{outcome.err}"
        assert outcome.err.startswith("kvlab: "), outcome.err
        assert outcome.out == "", outcome.out
        assert all(len(line) > 10 for line in outcome.mistakes), outcome.err
        for trace in TRACES:
            assert trace not in outcome.err, outcome.err
        assert contents(folder) == before, "a refused command left or changed files"
        return outcome

    def start(self, *arguments: object) -> Running:
        """Starts a command and does not wait for it. Its stdout goes to a file so that no pipe can fill up."""
        return Running(self._argv(arguments), self.folder)

    @staticmethod
    def _argv(arguments: tuple[object, ...]) -> list[str]:
        return [str(program_path()), *(str(argument) for argument in arguments)]


class Running:
    """A command under way; leaving the `with` block ends it."""

    def __init__(self, argv: list[str], folder: Path) -> None:
        self._log = folder / f".stderr-{time.monotonic_ns()}"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(argv, cwd=folder, stdout=subprocess.DEVNULL, stderr=log)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._log.unlink(missing_ok=True)

    @property
    def err(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def finished_cells(self) -> int:
        """Cells that the progress lines report."""
        return len(re.findall(r"^\[\d+/\d+\]", self.err, re.MULTILINE))

    def wait_until(self, condition: Callable[[], bool], timeout: float = 120) -> bool:
        """Waits for a condition; False where the program ended before it came true."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if condition():
                return True
            if self.process.poll() is not None:
                return condition()
            time.sleep(0.004)
        raise AssertionError(f"not within {timeout} s:\n{self.err}")


def contents(folder: Path) -> dict[str, int]:
    """Every file and folder below, with its time of change: whether a command left something behind."""
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns if path.is_file() else 0
            for path in folder.rglob("*") if not path.name.startswith(".stderr-")}
