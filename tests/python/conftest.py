"""Fixtures of the Python tests: tiny random models in a temporary folder, and places that may be absent."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "datasets"))

from kvlab_capture import cli  # noqa: E402

Outcome = tuple[int, str, str]  # exit code, stdout, stderr


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference data: KVLAB_SHARED, relative to the repository's root, by default ../shared."""
    folder = (REPOSITORY / os.environ.get("KVLAB_SHARED", "../shared")).resolve()
    if not folder.is_dir():
        pytest.skip(f"the reference data ({folder.name}) is not on this machine; KVLAB_SHARED names its folder")
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """tiny(kind, **changes of the configuration) -> folder of a random model with a tokenizer; each made once."""
    import tiny_models

    made: dict[tuple, Path] = {}

    def build(kind: str, **changes: object) -> Path:
        key = (kind, *sorted((name, repr(value)) for name, value in changes.items()))
        if key not in made:
            made[key] = tmp_path_factory.mktemp("models") / f"{kind}{len(made)}"
            tiny_models.save(made[key], kind, **changes)
        return made[key]

    return build


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """400 characters, each one token of the tiny tokenizer."""
    import tiny_models

    path = tmp_path / "letters.txt"
    path.write_text(tiny_models.letters(400), encoding="utf-8")
    return path


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """program(module, *arguments) runs a script's main as its command line would; no process, so that it is quick."""

    def call(module: object, *arguments: object) -> Outcome:
        argv = [str(argument) for argument in arguments]
        monkeypatch.setattr(sys, "argv", [module.__file__, *argv])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            cli.run(lambda: module.main(argv))
        out, err = capsys.readouterr()
        return exit_.value.code, out, err

    return call
