"""What the user asked for, and the rows of a file that answer it."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import pandas as pd
from kvlab_results import Refused, Results

ERRORS = ("wo_rel", "out_rel", "attn_kl", "k_nmse", "next_kl")  # the default error: the first that was measured
MOST_PANELS = 6
T = TypeVar("T")


@dataclass(frozen=True)
class Choice:
    value: str | None = None  # the metric that is drawn
    x: str | None = None  # what it is drawn against
    only: tuple[str, ...] = ()  # labels
    where: tuple[tuple[str, str], ...] = ()  # column and its value
    side: str = "key"  # or value: of errors by token and channel
    bandwidth: float | None = None  # bytes a second, for the roofline of a file without a `read` baseline

    def command(self, path: str, kind: str) -> str:
        """The command that draws this."""
        words = [".venv/bin/kvplot", path, "--kind", kind]
        for name, value in (("value", self.value), ("x", self.x)):
            words += [f"--{name}", value] if value else []
        for label in self.only:
            words += ["--only", label]
        for column, value in self.where:
            words += ["--where", f"{column}={value}"]
        words += ["--side", self.side] if self.side == "value" else []
        words += ["--bandwidth", f"{self.bandwidth / 1e9:g}"] if self.bandwidth else []
        return shlex.join([*words, "--out", f"{kind}_values.pdf" if self.side == "value" else f"{kind}.pdf"])


def rows(results: Results, choice: Choice) -> pd.DataFrame:
    """The complete rows that `only` and `where` leave."""
    found = results.complete
    for label in choice.only:
        known(label, results.summary["label"].unique(), f"{results.path}: there is no label")
    if choice.only:
        found = found[found["label"].isin(choice.only)]
    for column, value in choice.where:
        known(column, results.summary.columns, f"{results.path}: there is no column")
        found = found[[_same(entry, value) for entry in found[column]]]
    if found.empty:
        raise Refused(f"{results.path}: no complete row is left"
                      + (f" by {' and '.join(f'{c}={v}' for c, v in choice.where)}" if choice.where else ""))
    return found


def metric(results: Results, asked: str | None, otherwise: Sequence[str], what: str, made_by: str) -> str:
    """The metric asked for, by default the first of `otherwise` that was measured."""
    if asked:
        known(asked, list(results.units), f"{results.path}: there is no metric")
    for name in [asked] if asked else otherwise:
        if results.measured(name):
            return name
    wanted = asked or " or ".join(otherwise)
    raise Refused(f"{results.path} holds no {wanted}, which is {what}: {made_by}")


def apart(x: str, y: str, kind: str) -> None:
    """Refuses to draw something against itself."""
    if x == y:
        raise Refused(f"{kind} draws two things against each other, and both are {x}: --value and --x choose")


def known(name: str, names: Sequence[str], sentence: str) -> None:
    """Refuses a name that is not there, with the nearest one that is."""
    if name not in names:
        nearest = difflib.get_close_matches(name, [str(entry) for entry in names], 1, 0.4)
        hint = f"; did you mean {nearest[0]}?" if nearest else f"; there are {', '.join(map(str, names))}"
        raise Refused(f"{sentence} {name}{hint}")


def styles(results: Results) -> dict[str, int]:
    """Label to its place in the palette: the same in every picture of a file."""
    return {label: place for place, label in enumerate(results.summary["label"].unique())}


def in_order(found: pd.DataFrame) -> list[str]:
    """The labels of some rows in the file's order."""
    return list(found.sort_values("row")["label"].unique())


def at_most(panels: list[T], what: str = "labels", option: str = "--only") -> tuple[list[T], str]:
    """The first ones that have room for a panel each, and a sentence about the rest."""
    shown = panels[:MOST_PANELS]
    return shown, f"{len(shown)} of {len(panels)} {what}, {option} chooses" if len(shown) < len(panels) else ""


def pooled(found: pd.DataFrame, axes: Sequence[str] = ()) -> str:
    """"mean over 2 datasets, 12 layers": what the rows of one label differ in, `axes` of the sweep among it."""
    names = {name: f"{name}s" for name in ("dataset", "layer", "seed", "backend")} | {axis: f"values of {axis}" for axis in axes}
    parts = [f"{found[name].nunique()} {words}" for name, words in names.items() if found[name].nunique() > 1]
    return f"mean over {', '.join(parts)}" if parts else ""


def without(found: pd.DataFrame, *metrics: str) -> tuple[pd.DataFrame, str]:
    """The rows that have a number for all of these metrics, and a sentence about the others."""
    has = found[list(metrics)].notna().all(axis=1)
    if has.all():
        return found, ""
    said = f"{(~has).sum()} of {len(has)} rows have no {' or '.join(metrics)} and are left out"
    return found[has], listed(said, found.loc[~has, "label"].unique())


def listed(said: str, names: Sequence[object]) -> str:
    """"said: a, b, c and 4 more"; nothing of no names."""
    shown = ", ".join(str(name) for name in names[:3])
    return f"{said}: {shown}" + (f" and {len(names) - 3} more" if len(names) > 3 else "") if len(names) else ""


def sentence(*parts: str) -> str:
    """The parts that are not empty, as a caption."""
    return "; ".join(part for part in parts if part)


def name_of(metric_name: str, results: Results) -> str:
    """The metric with its unit, for an axis."""
    unit = {"us": "µs", "nats": "nats", "bytes": "bytes"}.get(results.units.get(metric_name, ""),
                                                                       "µs" if metric_name.endswith("_us") else "")
    plain = WORDS.get(metric_name, metric_name)
    return f"{plain} ({unit})" if unit else plain


WORDS = {"wo_rel": "relative error after W_O (wo_rel)", "bits_at_32k": "bits an element at 32K tokens",
         "bits_at_128k": "bits an element at 128K tokens", "bits_at_8k": "bits an element at 8K tokens",
         "bits_per_element": "bits an element", "decode_us": "time of a decoding step", "step_us": "time of a whole model's step",
         "encode_us": "time of encoding", "attn_kl": "KL of attention weights"}


def _same(entry: object, value: str) -> bool:
    try:
        return float(entry) == float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return str(entry) == value
