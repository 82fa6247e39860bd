"""What no run writes and users have: one sentence and exit 2, or a picture; never a trace, and nothing half-written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from browser import Browser
from conftest import REPOSITORY
from kvlab_results import read
from kvplot import cli, kinds, paper
from kvplot.choice import Choice
from results_writer import write_results

NAN, INF = float("nan"), float("inf")
ODD_LABELS = ["_hidden", "$x$ and $\\frac$", "50% & <b>bold</b>", "two\nlines", '"quoted" \'both\'', "ρ ≤ 中", "long_" * 60, " "]


def run(*arguments: object, **options: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "kvplot.cli", *arguments], capture_output=True, check=False, timeout=120,
                          env=os.environ | {"PYTHONPATH": str(REPOSITORY / "plots")}, **options)


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    count = len(ODD_LABELS)
    tokens = {"k_se": np.full((1, 2, 64), 0.5), "k_norm": np.ones((1, 2, 64)), "v_se": np.full((1, 2, 64), 0.5),
              "v_norm": np.ones((1, 2, 64)), "k_se_channels": np.ones((1, 2, 2, 8)), "v_se_channels": np.ones((1, 2, 2, 8)),
              "position": np.arange(4), "out_se": np.ones((1, 4, 4)), "out_ss": np.ones((1, 4, 4))}
    return write_results(tmp_path / "odd.h5", {"label": ODD_LABELS},
                         {"wo_rel": np.linspace(0.1, 0.9, count), "bits_at_32k": np.linspace(2, 4, count),
                          "out_rel": np.linspace(0.1, 0.9, count)}, tokens, {"out_rel": np.linspace(0.1, 1, 4)})


@pytest.mark.parametrize("kind", ["pareto", "means", "heads", "channels", "tokens", "position", "cumulative", "norms"])
def test_any_label_is_drawn_as_it_stands(kind: str, labelled: Path, tmp_path: Path) -> None:
    for suffix in ("png", "svg", "pdf"):
        assert cli.main([str(labelled), "--kind", kind, "--out", str(tmp_path / f"x.{suffix}")]) == 0


def test_a_label_that_begins_with_a_line_below_is_in_the_legend(labelled: Path) -> None:
    figure = kinds.ALL["pareto"].figure(read(labelled), Choice())
    with paper.mpl.rc_context({**paper.mpl.rcParamsDefault, **paper._STYLE}):
        texts = [text.get_text() for text in paper._canvas(figure, 3.35).legends[0].get_texts()]
    assert len(texts) == 1 + len(ODD_LABELS) and " _hidden" in texts and "\\$x\\$ and \\$\\frac\\$" in texts
    assert "two lines" in texts and any("…" in text for text in texts)


def test_the_report_shows_any_label_as_text(browser: Browser, labelled: Path, tmp_path: Path) -> None:
    assert cli.main(["report", str(labelled), "--out", str(tmp_path / "x.html")]) == 0
    browser.open(tmp_path / "x.html")
    cells = "[...document.querySelectorAll('#labels tbody tr')].map(row => row.cells[0].textContent)"
    assert browser.run(cells) == ODD_LABELS
    browser.run("(async () => { for (const plot of document.querySelectorAll('.plot')) { plot.scrollIntoView();"
                " await new Promise(done => setTimeout(done, 100)); } })()")
    legend = browser.run("[...document.querySelectorAll('.legendtext')].map(text => text.textContent)")
    assert "50% & <b>bold</b>" in legend and browser.errors == []


def test_a_thousand_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str], browser: Browser) -> None:
    """More than signs that can be told apart: a picture refuses, the report's points say who they are."""
    rng = np.random.default_rng(0)
    path = write_results(tmp_path / "many.h5", {"label": [f"method_{i}" for i in range(1000)]},
                         {"wo_rel": rng.uniform(0.1, 1, 1000), "bits_at_32k": rng.uniform(2, 4, 1000)})
    assert cli.main([str(path), "--kind", "pareto", "--out", str(tmp_path / "x.png")]) == 2
    assert "1001 names are more than the 150 that a legend holds; --only" in capsys.readouterr().err
    assert cli.main([str(path), "--kind", "pareto", "--only", "method_7", "--out", str(tmp_path / "x.png")]) == 0
    assert cli.main([str(path), "--kind", "means", "--out", str(tmp_path / "y.png")]) == 2
    assert "1000 rows of names" in capsys.readouterr().err
    assert cli.main(["report", str(path), "--out", str(tmp_path / "x.html")]) == 0
    browser.open(tmp_path / "x.html")
    begun = browser.cpu_seconds()
    browser.run("Promise.all(plots.map(draw)).then(() => null)")
    assert browser.cpu_seconds() - begun < 10
    assert browser.run("Math.max(...plots.map(one => one.plot.querySelectorAll('.trace').length))") < 10
    assert browser.run("document.querySelectorAll('.plot .points path').length") >= 2000
    assert browser.run("document.querySelectorAll('.plot .legendtext').length") == 0 and browser.errors == []
    assert "more than 60 lines, so neither legend nor names" in browser.run("document.getElementById('pictures').textContent")


def test_rows_without_a_number_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_results(tmp_path / "x.h5", {"label": ["a", "a", "b", "c", "d"], "layer": [0, 1, 0, 0, 0]},
                         {"wo_rel": [0.5, NAN, 0.25, INF, NAN], "bits_at_32k": [2, 2, 3, 3, 4]})
    for kind in ("pareto", "means"):
        assert cli.main([str(path), "--kind", kind, "--out", str(tmp_path / "x.png")]) == 0
        said = capsys.readouterr().out
        assert "2 of 5 rows have no " in said and "left out: a, d" in said and "infinite, not drawn: c" in said, said
    assert cli.main(["report", str(path), "--out", str(tmp_path / "x.html")]) == 0
    assert "wo_rel is no number, and its means leave the row out" in (tmp_path / "x.html").read_text("utf-8")


@pytest.mark.parametrize("kind", kinds.ALL)
@pytest.mark.parametrize("values", [[], [NAN, NAN], [INF, INF], [0.5], [0.0, 0.0], [-1.0, 0.5]], ids=str)
def test_few_or_odd_numbers_end_in_a_picture_or_a_sentence(kind: str, values: list[float], tmp_path: Path,
                                                           capsys: pytest.CaptureFixture[str]) -> None:
    count = len(values)
    path = write_results(tmp_path / "x.h5", {"label": ["a", "b"][:count], "group": [32, 64][:count], "batch": [1, 2][:count],
                                             "window.recent": [0, 64][:count], "tokens": [256, 512][:count]},
                         {name: values for name in ("wo_rel", "out_rel", "bits_at_32k", "decode_us")},
                         {"k_se": np.full((1, 1, 64), values[0] if values else NAN), "k_norm": np.zeros((1, 1, 64))},
                         {"out_rel": np.array(values)} if values else None)
    code = cli.main([str(path), "--kind", kind, "--out", str(tmp_path / "x.png")])
    said = capsys.readouterr().err
    assert code == 0 or (code == 2 and said.startswith("kvplot: ") and said.count("\n") == 1), said
    assert (tmp_path / "x.png").exists() == (code == 0) and len(list(tmp_path.iterdir())) == 1 + (code == 0)


def test_a_report_of_no_rows(tmp_path: Path, browser: Browser) -> None:
    path = write_results(tmp_path / "x.h5", {"label": []}, {"wo_rel": []})
    assert cli.main(["report", str(path), "--out", str(tmp_path / "x.html")]) == 0
    browser.open(tmp_path / "x.html")
    assert browser.errors == [] and browser.run("document.querySelectorAll('#rows tbody tr').length") == 0


@pytest.mark.parametrize("damage", ["empty", "no summary", "no experiment", "unequal columns", "folder"])
@pytest.mark.parametrize("command", ["report", "pareto"])
def test_damaged_files_are_refused(damage: str, command: str, tmp_path: Path) -> None:
    path = write_results(tmp_path / "x.h5", {"label": ["a", "b"]}, {"wo_rel": [0.5, 0.25], "bits_at_32k": [2, 3]})
    if damage in ("empty", "folder"):
        path.unlink()
        path.touch() if damage == "empty" else path.mkdir()
    else:
        with h5py.File(path, "r+") as file:
            if damage == "unequal columns":
                del file["summary/layer"]
                file["summary/layer"] = [1]
            else:
                del file[damage.removeprefix("no ")]
    if (damage, command) == ("no experiment", "pareto"):
        return  # which needs none
    out = tmp_path / "x.html" if command == "report" else tmp_path / "x.png"
    done = run(*(["report", path] if command == "report" else [path, "--kind", command]), "--out", out)
    assert done.returncode == 2 and done.stderr.startswith(b"kvplot: ") and done.stderr.count(b"\n") == 1, done.stderr
    assert not out.exists()


def test_file_names_that_are_no_utf8(tmp_path: Path) -> None:
    path = write_results(tmp_path / "x.h5", {"label": ["a", "b"]}, {"wo_rel": [0.5, 0.25], "bits_at_32k": [2, 3]})
    odd = os.fsencode(tmp_path) + b"/\xff\xfe.h5"
    os.rename(path, odd)
    for arguments in ([odd, b"--kind", b"pareto", b"--out", os.fsencode(tmp_path) + b"/\xff.png"],
                      [b"report", odd, b"--out", os.fsencode(tmp_path) + b"/\xff.html"]):
        done = run(*arguments)
        assert done.returncode == 0 and done.stderr == b"", done.stderr
    assert run(os.fsencode(tmp_path) + b"/\xfa.h5", b"--kind", b"pareto").stderr.endswith(b"there is no such file\n")


@pytest.mark.parametrize(("sign", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_killed_picture_leaves_nothing(sign: int, code: int, labelled: Path, tmp_path: Path) -> None:
    script = ("import sys, time; from kvplot import cli\n"
              "import kvplot.cli as c\n"
              "def slow(self, content): open(self, 'wb').write(b'half'); print('half', flush=True); time.sleep(60)\n"
              "c.Path.write_bytes = slow\n"
              "sys.exit(cli.main())")
    (tmp_path / "out").mkdir()
    with subprocess.Popen([sys.executable, "-c", script, labelled, "--kind", "pareto", "--out", tmp_path / "out/x.png"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(REPOSITORY / "plots")}
                          ) as process:
        assert process.stdout.readline() == b"half\n"
        process.send_signal(sign)
        _, said = process.communicate(timeout=60)
    assert process.returncode == code and b"Traceback" not in said, said
    assert not list((tmp_path / "out").iterdir())
