"""R's data and Debian's packages become plain texts."""

from __future__ import annotations

import gzip
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import h5py
import pytest
import texts
from kvlab_capture import debian, rdata
from kvlab_capture.cli import UserError
from kvlab_capture.reflow import reflow

HEADER = b"X\n" + struct.pack(">iii", 3, 0x040201, 0x030500) + struct.pack(">i", 5) + b"UTF-8"
NIL = struct.pack(">i", 254)


def chars(text: str | None, encoding: str = "utf-8") -> bytes:
    if text is None:
        return struct.pack(">ii", 9, -1)
    level = 1 << 2 if encoding == "latin-1" else 1 << 3
    raw = text.encode(encoding)
    return struct.pack(">ii", 9 | level << 12, len(raw)) + raw


def strings(*values: str | None) -> bytes:
    return struct.pack(">ii", 16, len(values)) + b"".join(map(chars, values))


def named_list(**items: bytes) -> bytes:
    """A list with the attribute names, as R writes it."""
    attributes = struct.pack(">ii", 2 | 1 << 10, 1) + chars("names") + strings(*items) + NIL
    return struct.pack(">ii", 19 | 1 << 9, len(items)) + b"".join(items.values()) + attributes


def write_lazy_load(stem: Path, **variables: bytes) -> None:
    data, places = b"", {}
    for name, value in variables.items():
        plain = HEADER + value
        record = struct.pack(">I", len(plain)) + zlib.compress(plain)
        places[name] = struct.pack(">iiii", 13, 2, len(data), len(record))
        data += record
    index = named_list(
        variables=named_list(**places), references=named_list(), compressed=struct.pack(">iii", 10, 1, 1)
    )
    stem.with_suffix(".rdb").write_bytes(data)
    stem.with_suffix(".rdx").write_bytes(gzip.compress(HEADER + index))


def test_lazy_load_data(tmp_path: Path) -> None:
    stem = tmp_path / "Rdata"
    reals = struct.pack(">iidd", 14, 2, 0.5, -2.0)
    write_lazy_load(stem, novel=strings("EMMA", "", "caf\u00e9", None), numbers=reals)
    assert rdata.read_lazy_load(stem) == {"novel": ["EMMA", "", "caf\u00e9", None], "numbers": [0.5, -2.0]}


def test_symbols_references_and_encodings() -> None:
    latin = struct.pack(">ii", 16, 1) + chars("caf\u00e9", "latin-1")
    assert rdata.deserialize(HEADER + latin) == ["caf\u00e9"]
    symbol, again = struct.pack(">i", 1) + chars("names"), struct.pack(">i", 255 | 1 << 8)
    assert rdata.deserialize(HEADER + struct.pack(">ii", 19, 2) + symbol + again) == ["names", "names"]


@pytest.mark.parametrize("damage", ["cut", "not gzip", "another type"])
def test_damaged_data_is_one_sentence(tmp_path: Path, damage: str) -> None:
    stem = tmp_path / "Rdata"
    write_lazy_load(stem, novel=struct.pack(">ii", 3, 0) if damage == "another type" else strings("EMMA"))
    if damage == "cut":
        stem.with_suffix(".rdb").write_bytes(stem.with_suffix(".rdb").read_bytes()[:-8])
    if damage == "not gzip":
        stem.with_suffix(".rdx").write_bytes(b"RDX3")
    with pytest.raises(UserError, match="not R lazy-load data"):
        rdata.read_lazy_load(stem)


def test_reflow() -> None:
    assert reflow(["", "TITLE", " ", "", "  one", "two\n", "", "three  four"]) == "TITLE\n\none two\n\nthree  four\n"


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not on this machine")


def fake_package(cache: Path, name: str, path: str, content: bytes) -> None:
    root = cache / "build"
    (root / "DEBIAN").mkdir(parents=True)
    control = f"Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: nobody <n@example.org>\nDescription: test\n"
    (root / "DEBIAN" / "control").write_text(control)
    (root / path).parent.mkdir(parents=True)
    (root / path).write_bytes(content)
    subprocess.run(["dpkg-deb", "-b", root, cache / f"{name}_1_all.deb"], check=True, capture_output=True)


@needs("dpkg-deb")
def test_a_package_is_unpacked_from_the_cache_without_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_package(tmp_path, "some-text", "usr/share/some/text.gz", b"content")
    nowhere = tmp_path / "nowhere"
    monkeypatch.setattr(debian, "_download", lambda *_: pytest.fail("nothing is to be downloaded"))
    for _ in range(2):
        path = debian.package_file("some-text", "usr/share/some/text.gz", tmp_path, root=nowhere)
        assert path.read_bytes() == b"content"
    with pytest.raises(UserError, match=r"some-text_1_all\.deb holds no file usr/share/other"):
        debian.package_file("some-text", "usr/share/other", tmp_path, root=nowhere)


def test_an_installed_file_comes_first(tmp_path: Path) -> None:
    (tmp_path / "root/usr").mkdir(parents=True)
    (tmp_path / "root/usr/file").write_text("installed")
    assert debian.package_file("p", "usr/file", tmp_path / "cache", root=tmp_path / "root").read_text() == "installed"


@needs("apt-get")
def test_no_package_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot download the Debian package no-such-kvlab-text \(Unable to locate"):
        debian.package_file("no-such-kvlab-text", "usr/x", tmp_path / "cache", root=tmp_path)


@pytest.fixture(scope="module")
def real_texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of texts made from the real packages, where they are installed or in datasets/cache; never downloads."""
    for package, path in (texts.AUSTEN, texts.JARGON):
        places = (Path("/") / path, texts.CACHE / package / path)
        if not any(place.is_file() for place in places) and not any(texts.CACHE.glob(f"{package}_*.deb")):
            pytest.skip(
                f"the Debian package {package} is neither installed nor in datasets/cache: run datasets/texts.py"
            )
    folder = tmp_path_factory.mktemp("texts")
    texts.write_all(folder, texts.CACHE)
    return folder


def test_the_real_packages_parse(real_texts: Path) -> None:
    names = sorted(path.name for path in real_texts.iterdir())
    assert names == sorted([*(f"austen_{novel}.txt" for novel in texts.NOVELS), "jargon.txt"])
    for path in real_texts.iterdir():
        text = path.read_text(encoding="utf-8")
        assert len(text) > 400_000
        assert text.endswith("\n") and "\n\n\n" not in text
        assert all(part == part.strip() and "\n" not in part for part in text[:-1].split("\n\n"))


def test_a_second_run_leaves_the_files_alone(real_texts: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in real_texts.iterdir()}
    texts.write_all(real_texts, texts.CACHE)
    assert {path: path.stat().st_mtime_ns for path in real_texts.iterdir()} == before


def test_emma_holds_the_reference_passage(real_texts: Path, shared: Path) -> None:
    with h5py.File(shared / "smollm2" / "smollm2_emma_512.h5") as file:
        passages = [bytes(file[name][...]).decode() for name in ("text_utf8", "text_2048_utf8")]
    emma = (real_texts / "austen_emma.txt").read_text(encoding="utf-8")
    assert passages[0].startswith("CHAPTER III\n\nEmma could not forgive her")
    assert all(emma.count(passage) == 1 for passage in passages)
