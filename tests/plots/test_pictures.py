"""Every kind: what it draws is what the file holds, and what it cannot draw it refuses with the way to get it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import matplotlib.figure
import matplotlib.image
import matplotlib.transforms
import numpy as np
import pytest
import tiny_model
from conftest import REPOSITORY
from experiment_text import synthetic, write
from kvlab_program import Kvlab
from kvlab_results import Refused, Results, read
from kvplot import cli, kinds, palette, paper
from kvplot.choice import Choice
from kvplot.figure import Axis, Figure, Heat, Panel, Series
from results_writer import write_results

# Kind to the fixture that has what it needs.
FILES = dict.fromkeys(kinds.ALL, "swept") | dict.fromkeys(("pareto_time", "latency", "batch"), "timed")
DEFAULT = Choice()


def draw(request: pytest.FixtureRequest, kind: str, choice: Choice = DEFAULT) -> Figure:
    return kinds.ALL[kind].figure(request.getfixturevalue(FILES[kind]), choice)


def series(figure: Figure, panel: int = 0) -> dict[str, Series]:
    return {mark.name: mark for mark in figure.panels[panel].marks if isinstance(mark, Series)}


@pytest.mark.parametrize("kind", kinds.ALL)
def test_each_kind_draws(request: pytest.FixtureRequest, kind: str) -> None:
    figure = draw(request, kind)
    assert figure.kind == kind and all(panel.marks for panel in figure.panels)
    assert paper.draw(figure, "svg").count(b"<g id=") > 20


@pytest.mark.parametrize("kind", [kind for kind in kinds.ALL if kind not in ("heads", "means")])  # these only need errors
def test_what_a_file_lacks_is_said(plain: Results, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "x.png"
    assert cli.main([str(plain.path), "--kind", kind, "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("kvplot: ") and said.count("\n") == 1
    assert "measure: [" in said or "experiments/" in said
    assert not list(tmp_path.iterdir())


def test_other_processes_draw_the_same_bytes(swept: Results, tmp_path: Path) -> None:
    script = ("import sys; from kvplot import cli\n"
              "for kind in ('pareto', 'channels'):\n"
              "    for suffix in ('png', 'svg', 'pdf'):\n"
              "        cli.main([sys.argv[1], '--kind', kind, '--out', f'{sys.argv[2]}/{kind}.{suffix}'])")
    for seed in ("1", "2"):
        (tmp_path / seed).mkdir()
        subprocess.run([sys.executable, "-c", script, swept.path, tmp_path / seed], check=True, capture_output=True,
                       env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(REPOSITORY / "plots")})
    made = sorted((tmp_path / "1").iterdir())
    assert len(made) == 6
    starts = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
    for path in made:
        content = path.read_bytes()
        assert content.startswith(starts[path.suffix]) and content == (tmp_path / "2" / path.name).read_bytes(), path.name


def test_identifiers_of_an_svg_are_counted(swept: Results) -> None:
    """Matplotlib's own are hashes of coordinates down to bits that machines do not share."""
    svg = paper.draw(kinds.ALL["pareto"].figure(swept, DEFAULT), "svg").decode()
    names = re.findall(r'id="([^"]+)"', svg)
    assert len(set(names)) == len(names) and not [name for name in names if re.search(r"[0-9a-f]{10}$", name)]
    assert set(re.findall(r'(?:url\(|href=")#([\w.-]+)', svg)) <= set(names)


def test_the_widths_are_those_of_a_paper(swept: Results, tmp_path: Path) -> None:
    for width, inches in (("column", 3.35), ("text", 7.0)):
        out = tmp_path / f"{width}.png"
        assert cli.main([str(swept.path), "--kind", "pareto", "--width", width, "--out", str(out)]) == 0
        assert matplotlib.image.imread(out).shape[1] == round(300 * inches)


@pytest.mark.parametrize("width", paper.WIDTHS)
@pytest.mark.parametrize("count", [3, 12, 45, 120])
def test_a_legend_of_any_length_fits(width: str, count: int) -> None:
    points = [Series(f"a_method_with_a_name_{i}", [1.0, 2.0], [1.0, i + 1.0], i) for i in range(count)]
    figure = Figure("pareto", "", [Panel(Axis("bits"), Axis("error"), points)])
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **paper._STYLE}):
        canvas = paper._canvas(figure, paper.WIDTHS[width])
        canvas.draw_without_rendering()
    inside = canvas.legends[0].get_window_extent()
    assert inside.x0 >= 0 and inside.y0 >= 0
    assert inside.x1 <= canvas.bbox.width and inside.y1 <= canvas.bbox.height
    assert canvas.axes[0].get_window_extent().width > 0.35 * canvas.bbox.width


def _texts(canvas: matplotlib.figure.Figure) -> list[tuple[str, matplotlib.transforms.Bbox]]:
    """What is written into a picture, but for numbers in fields of a map, and where."""
    found = []
    for axes in canvas.axes:
        if not axes.axison:  # the empty place behind an odd number of panels
            continue
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            place = 0 if axis.axis_name == "x" else 1
            found += [label for label in axis.get_majorticklabels() if low <= label.get_position()[place] <= high]
        found += [axes.title, axes.xaxis.label, axes.yaxis.label]
    found += [text for legend in canvas.legends for text in legend.get_texts()]
    return [(text.get_text(), text.get_window_extent()) for text in found if text.get_text()]


def _check_texts(figure: Figure, width: str) -> None:
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **paper._STYLE}):
        canvas = paper._canvas(figure, paper.WIDTHS[width])
        canvas.draw_without_rendering()
        texts = _texts(canvas)
    slack = 0.01 * canvas.dpi
    for text, box in texts:
        assert box.x0 >= -slack and box.y0 >= -slack, text
        assert box.x1 <= canvas.bbox.width + slack and box.y1 <= canvas.bbox.height + slack, text
    for place, (one, a) in enumerate(texts):
        for other, b in texts[:place]:
            apart = a.x1 < b.x0 + slack or b.x1 < a.x0 + slack or a.y1 < b.y0 + slack or b.y1 < a.y0 + slack
            assert apart, f"{one!r} runs into {other!r}"


@pytest.mark.parametrize("width", paper.WIDTHS)
@pytest.mark.parametrize("kind", kinds.ALL)
def test_no_text_is_cut_or_runs_into_another(request: pytest.FixtureRequest, kind: str, width: str) -> None:
    _check_texts(draw(request, kind), width)


@pytest.mark.parametrize("width", paper.WIDTHS)
@pytest.mark.parametrize(("kind", "file"), [("batch", "model"), ("latency", "model"), ("batch", "decode"), ("latency", "decode")])
def test_a_benchmarks_texts_fit(kind: str, file: str, width: str) -> None:
    """Batches of 32, 48 and 64 beside each other, titles of two settings, times over three decades."""
    _check_texts(kinds.ALL[kind].figure(read(REPOSITORY / f"results/h200/{file}.h5"), DEFAULT), width)


def test_numbers_of_ticks_are_thinned_evenly_or_greedily() -> None:
    even = [(10.0 * i, 10.0 * i + 14) for i in range(7)]
    assert paper._apart(even, 2) == [0, 2, 4, 6]
    uneven = [(0, 4), (6, 10), (9, 13), (14, 18), (15, 19)]
    assert paper._apart(uneven, 1) == [0, 1, 4]  # the last stays
    assert paper._apart([(0, 4)], 1) == [0] and paper._apart([], 1) == []


def test_means_along_any_column(swept: Results) -> None:
    where = (("seed", "0"),)
    rows = swept.complete[(swept.complete["seed"] == 0) & swept.complete["attn_kl"].notna()]
    ranked = kinds.ALL["means"].figure(swept, Choice(value="out_cos", where=where)).panels[0]
    means = rows.groupby("label")["out_cos"].mean().sort_values(ascending=False)
    assert ranked.y.names == list(means.index)
    assert [mark.x[0] for mark in ranked.marks] == pytest.approx(list(means))
    figure = kinds.ALL["means"].figure(swept, Choice(value="out_rel", x="group", where=where))
    lines = series(figure)
    expected = rows[rows["label"] == "kivi"].groupby("group")["out_rel"].mean()
    assert list(lines["kivi"].x) == [32, 64] and list(lines["kivi"].y) == pytest.approx(list(expected))
    assert "no intervals, which need 16 passages" in figure.caption
    # 96 tokens are no multiple of 64, so that two labels lack a point there.
    assert "not comparable: 64 kivi, 64 oscar_ots" in figure.caption
    with pytest.raises(Refused, match="there is no column groop; did you mean group"):
        kinds.ALL["means"].figure(swept, Choice(x="groop"))


def test_means_by_the_number_that_ends_a_label(tmp_path: Path) -> None:
    """ "kivi, layer 10" is a point of kivi at 10; labels without a number stay out."""
    labels = ["kivi", "kivi, layer 10", "kivi, layer 2", "kivi, keys only", "kivi, layers 0 to 4", "two, words, layer 2"]
    path = write_results(tmp_path / "r.h5", {"label": labels}, {"dnll": [1.0, 0.4, 0.3, 0.2, 0.5, 0.1]})
    figure = kinds.ALL["means"].figure(read(path), Choice(value="dnll", x="part"))
    lines = series(figure)
    assert {name: (list(line.x), list(line.y)) for name, line in lines.items()} == {"kivi": ([2, 10], [0.3, 0.4]), "two, words": ([2], [0.1])}
    assert figure.panels[0].x.label == "layer" and figure.title == "Mean dnll by layer"
    with pytest.raises(Refused, match="no label has a number at its end"):
        kinds.ALL["means"].figure(read(path), Choice(value="dnll", x="part", only=("kivi",)))


@pytest.mark.parametrize(("seeds", "metric"), [(16, "k_nmse"), (4, "wo_rel")])
def test_intervals_are_those_of_the_table(tmp_path: Path, seeds: int, metric: str) -> None:
    """To the last digits but for the order of sums, as the resamples are the same: of passages, and of blocks within them."""
    write(tmp_path, seeds=list(range(seeds)), measure=["error", "attention"], methods=["kivi", "int2_naive"],
          probes={"placement": "all"}, dataset=[synthetic(pattern="gaussian"), synthetic(pattern="low_norm_sink")])
    program = Kvlab(tmp_path)
    program.ok("run", "small.yaml")
    lines = program.ok("table", "small.h5", "--value", metric, "--format", "csv").out.splitlines()
    assert lines[0] == f"label,{metric},{metric} low,{metric} high,cells"
    table = {line.split(",")[0]: [float(number) for number in line.split(",")[1:4]] for line in lines[1:]}
    panel = kinds.ALL["means"].figure(read(tmp_path / "small.h5"), Choice(value=metric)).panels[0]
    drawn = {mark.name: [mark.x[0], mark.ends[0][0], mark.ends[1][0]] for mark in panel.marks}
    assert drawn.keys() == table.keys()
    for label, numbers in table.items():
        assert drawn[label] == pytest.approx(numbers, rel=1e-9)


def test_a_share_of_trials_has_the_interval_of_the_table(tmp_path: Path) -> None:
    program = Kvlab(tiny_model.make(tmp_path))
    (tmp_path / "needle.yaml").write_text("schema: 1\ndataset: {source: model, path: model, needles: needles.h5}\n"
                                          "measure: [needle]\nmethods: [bf16, kivi]\noutput: needle.h5\n")
    program.ok("run", "needle.yaml")
    lines = program.ok("table", "needle.h5", "--value", "needle_exact", "--format", "csv").out.splitlines()
    table = {line.split(",")[0]: [float(number) for number in line.split(",")[1:4]] for line in lines[1:]}
    figure = kinds.ALL["means"].figure(read(tmp_path / "needle.h5"), Choice(value="needle_exact"))
    for mark in figure.panels[0].marks:
        assert [mark.x[0], mark.ends[0][0], mark.ends[1][0]] == pytest.approx(table[mark.name], rel=1e-12)
        assert mark.ends[0][0] < mark.ends[1][0]
    assert "Wilson" in figure.caption


def test_pareto_points_are_means_and_nothing_beats_the_front(request: pytest.FixtureRequest, swept: Results) -> None:
    drawn = series(draw(request, "pareto"))
    front = drawn.pop("Pareto front")
    rows = swept.complete[swept.complete["wo_rel"] > 0]
    for label, mark in drawn.items():
        means = rows[rows["label"] == label].groupby(["group", "window.recent"])[["bits_at_32k", "wo_rel"]].mean()
        assert sorted(zip(mark.x, mark.y, strict=True)) == sorted(map(tuple, means.to_numpy()))
    points = [point for mark in drawn.values() for point in zip(mark.x, mark.y, strict=True)]
    unbeaten = {(x, y) for x, y in points if not any(a <= x and b <= y and (a, b) != (x, y) for a, b in points)}
    assert set(zip(front.x, front.y, strict=True)) == unbeaten and len(unbeaten) > 1


def test_heat_has_every_point_in_its_place(request: pytest.FixtureRequest, swept: Results) -> None:
    for panel in draw(request, "heat").panels:
        (heat,) = panel.marks
        assert isinstance(heat, Heat) and heat.columns == ["32", "64"] and heat.rows == ["96", "0"]
        for (row, column), value in np.ndenumerate(heat.z):
            at = swept.complete[(swept.complete["label"] == panel.title) & (swept.complete["group"] == int(heat.columns[column]))
                                & (swept.complete["window.recent"] == int(heat.rows[row]))]
            assert np.isnan(value) if at.empty else value == pytest.approx(at["wo_rel"].mean(), rel=1e-12)
    # oscar_ots empties its buffer of 96 tokens at once, which groups of 64 do not divide.
    ots = next(panel.marks[0] for panel in draw(request, "heat").panels if panel.title == "oscar_ots")
    assert np.isnan(ots.z).tolist() == [[False, True], [False, False]]


def test_heads_are_layers_by_heads(request: pytest.FixtureRequest, swept: Results) -> None:
    panel = draw(request, "heads", Choice(only=("kivi",))).panels[0]
    cells = swept.complete[swept.complete["label"] == "kivi"]["cell"].unique()
    expected = np.mean([swept.arrays(cell, "metrics")["out_rel"] for cell in cells], axis=0)
    np.testing.assert_allclose(panel.marks[0].z, [expected], rtol=1e-12)
    caption = draw(request, "heads", Choice(only=("kivi",))).caption
    assert caption == "mean over 2 seeds, 2 values of group, 2 values of window.recent"


def _first_cell(results: Results, label: str) -> dict[str, np.ndarray]:
    rows = results.complete[results.complete["label"] == label]
    return results.arrays(rows.sort_values("row")["cell"].iloc[0], "tokens")


def test_norms_are_boxes_over_heads(request: pytest.FixtureRequest, swept: Results) -> None:
    (boxes,) = draw(request, "norms").panels[0].marks
    norms = _first_cell(swept, "kivi")["k_norm"][0]  # [2, 256]: of two heads the quartiles lie between
    np.testing.assert_allclose(boxes.low, norms.min(axis=0)[:48])
    np.testing.assert_allclose(boxes.high, norms.max(axis=0)[:48])
    np.testing.assert_allclose(boxes.median, norms.mean(axis=0)[:48])
    np.testing.assert_allclose(boxes.q1, norms.min(axis=0)[:48] * 0.75 + norms.max(axis=0)[:48] * 0.25)


def test_channels_and_tokens_hold_the_error_of_their_place(request: pytest.FixtureRequest, swept: Results) -> None:
    choice = Choice(only=("int2_naive",), where=(("seed", "0"),))
    arrays = _first_cell(swept, "int2_naive")
    channels = draw(request, "channels", choice).panels[0].marks[0]
    assert channels.rows[64] == "1:0" and channels.columns[3] == "96"
    assert channels.z[64 + 5, 3] == pytest.approx(arrays["k_se_channels"][0, 1, 3, 5] / 32)
    tokens = draw(request, "tokens", choice).panels[0].marks[0]
    expected = (arrays["k_se"] / arrays["k_norm"] ** 2)[0, 1, 20:22].mean()  # 256 tokens in 128 columns
    assert tokens.rows[1] == "0:1" and tokens.z[1, 10] == pytest.approx(expected)


def test_position_and_cumulative_share(request: pytest.FixtureRequest, swept: Results) -> None:
    choice = Choice(only=("kivi",), where=(("seed", "0"),))
    arrays = _first_cell(swept, "kivi")
    line = series(draw(request, "position", choice))["kivi"]
    assert list(line.x) == [143, 159, 175, 191, 207, 223, 239, 255]  # ⌊T/2⌋ + ⌊(i+1)·128/8⌋ − 1
    np.testing.assert_allclose(line.y, np.sqrt(arrays["out_se"][0].sum(axis=0) / arrays["out_ss"][0].sum(axis=0)))
    share = series(draw(request, "cumulative", choice))["kivi"]
    assert (share.x[0], share.y[0]) == (0, 0) and (share.x[-1], share.y[-1]) == (100, pytest.approx(100))
    assert (np.diff(share.y) >= 0).all() and (np.diff(share.y, 2) <= 1e-9).all()  # worst tokens first
    errors = np.sort(arrays["k_se"][0].sum(axis=0))[::-1]
    errors = errors[~np.isnan(errors)]
    half = np.interp(50, share.x, share.y)
    assert half == pytest.approx(100 * errors[:errors.size // 2].sum() / errors.sum(), abs=0.1)


def test_latency_and_its_roofline(request: pytest.FixtureRequest, timed: Results) -> None:
    choice = Choice(where=(("batch", "1"),), bandwidth=2e9)
    drawn = series(draw(request, "latency", choice))
    row = timed.complete.set_index(["label", "tokens", "batch"]).loc[("kivi", 512, 1)]
    assert drawn["kivi"].y[1] == row["decode_us"]
    held = sum(row[f"bytes_{part}"] for part in ("codes", "params", "scales", "centers", "window", "padding"))
    assert drawn["kivi at the read bandwidth"].y[1] == pytest.approx(held / 2e9 * 1e6)
    without = draw(request, "latency", Choice(where=(("batch", "1"),)))
    assert "no roofline" in without.caption and list(series(without)) == ["bf16", "kivi"]


def test_the_benchmarks_own_bandwidth_makes_the_roofline() -> None:
    results = read(REPOSITORY / "results/h200/decode.h5")
    where = (("batch", "1"), ("cache", "cold"), ("case", ""), ("rotation", ""))
    line = series(kinds.ALL["latency"].figure(results, Choice(where=where)))["cuda f1 at the read bandwidth"]
    keys = ["label", "tokens", "batch", "cache", "case", "rotation"]
    row = results.complete.set_index(keys).loc[("cuda f1", 131072, 1, "cold", "", "")]
    # Its share of the read bandwidth is the roofline's time over its own.
    assert line.y[-1] / row["decode_us"] == pytest.approx(row["of_read"], rel=1e-3)


def test_batch_counts_tokens_a_second(request: pytest.FixtureRequest, timed: Results) -> None:
    figure = draw(request, "batch", Choice(where=(("tokens", "256"),)))
    times, rates = series(figure, 0)["kivi"], series(figure, 1)["kivi"]
    assert list(times.x) == [1, 2]
    assert rates.y == pytest.approx([1e6 / times.y[0], 2e6 / times.y[1]])


@pytest.mark.parametrize(("arguments", "said"), [
    (["--kind", "paretto"], "there is no kind paretto; did you mean pareto?"),
    (["--kind", "pareto", "--value", "wo_real"], "there is no metric wo_real; did you mean wo_rel?"),
    (["--kind", "pareto", "--only", "kiwi"], "there is no label kiwi; did you mean kivi?"),
    (["--kind", "pareto", "--where", "groop=32"], "there is no column groop; did you mean group?"),
    (["--kind", "pareto", "--where", "group"], "--where group: expected COLUMN=VALUE"),
    (["--kind", "pareto", "--where", "group=7"], "no complete row is left by group=7"),
    (["--kind", "heads", "--value", "wo_rel"], "no cell holds wo_rel by head"),
    (["--kind", "pareto", "--value", "bits_at_32k"], "both are bits_at_32k: --value and --x choose"),
    (["--kind", "pareto", "--x", "wo_rel"], "both are wo_rel: --value and --x choose"),
    (["--kind", "heat", "--x", "group"], "both are group: --value and --x choose"),
    (["--kind", "latency", "--bandwidth", "-1"], "--bandwidth -1: expected gigabytes a second above 0"),
    (["--kind", "pareto", "--out", "x.jpg"], "x.jpg: expected a name that ends in .png or .svg or .pdf"),
])
def test_mistakes_are_named(swept: Results, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str],
                            tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main([str(swept.path), *arguments]) == 2
    assert said in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_the_printed_command_draws_the_same(swept: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shlex
    monkeypatch.chdir(tmp_path)
    choice = Choice(value="attn_kl", only=("kivi", "oscar_ots"), where=(("group", "32"),))
    command = shlex.split(choice.command(str(swept.path), "pareto"))
    assert command[0] == ".venv/bin/kvplot" and cli.main(command[1:]) == 0
    assert (tmp_path / "pareto.pdf").read_bytes() == paper.draw(kinds.ALL["pareto"].figure(swept, choice), "pdf")


def _seen(colour: str, without: str) -> np.ndarray:
    """An sRGB colour as eyes without one kind of cone see it: Machado, Oliveira and Fernandes (2009), severity 1."""
    matrix = {
        "red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
        "green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    }[without]
    linear = np.array([int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]) ** 2.2
    return np.clip(np.array(matrix) @ linear, 0, 1) ** (1 / 2.2)


def test_colours_differ_for_colour_blind_eyes_and_no_two_styles_are_alike() -> None:
    for without in ("red", "green"):
        seen = [_seen(colour, without) for colour in palette.COLOURS]
        nearest = min(np.linalg.norm(a - b) for i, a in enumerate(seen) for b in seen[:i])
        assert nearest > 0.15, (without, nearest)
    assert len({(palette.colour(style), palette.marker(style), palette.hollow(style)) for style in range(98)}) == 98


def test_a_figure_that_fails_leaves_no_file(swept: Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Refused):
        kinds.ALL["pareto"].figure(swept, Choice(x="decode_us"))
    assert cli.main([str(swept.path), "--kind", "pareto", "--x", "decode_us", "--out", str(tmp_path / "none/x.png")]) == 2
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    capsys.readouterr()
    assert cli.main([str(swept.path), "--kind", "pareto", "--out", str(tmp_path / "file/x.png")]) == 2
    assert capsys.readouterr().err.startswith(f"kvplot: {tmp_path}/file/x.png: cannot be written: ")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_folder_of_a_picture_is_made(swept: Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new/folder/x.svg"
    assert cli.main([str(swept.path), "--kind", "pareto", "--out", str(out)]) == 0
    assert [path.name for path in out.parent.iterdir()] == ["x.svg"]
    (tmp_path / "taken.png").mkdir()
    assert cli.main([str(swept.path), "--kind", "pareto", "--out", str(tmp_path / "taken.png")]) == 2
    assert "found a folder" in capsys.readouterr().err


def test_the_pictures_of_the_gpu_are_those_of_their_commands(tmp_path: Path) -> None:
    folder = REPOSITORY / "results/h200"
    text = (folder / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"`kvplot (\S+) ([^`]+?) --out (\S+)`", text)
    assert {out for _, _, out in commands} == set(re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)) == {"model_latency.svg", "model_batch.svg"}
    for file, options, out in commands:
        assert cli.main([str(folder / file), *options.split(), "--out", str(tmp_path / out)]) == 0
        assert (tmp_path / out).read_bytes() == (folder / out).read_bytes(), out
