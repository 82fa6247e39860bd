"""The arrays by token that `measure: [tokens]` stores, for the kinds that draw them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from kvlab_results import Refused, Results

from kvplot import choice as ch
from kvplot.figure import Panel

NEEDS = "measure: [tokens], as experiments/token_errors.yaml"


@dataclass(frozen=True)
class Cell:
    label: str
    dataset: str
    layer: int
    arrays: dict[str, np.ndarray]


def cells(results: Results, choice: ch.Choice, kind: str, array: str, *beside: str) -> tuple[list[Cell], str]:
    """The cells that hold an array, in the file's order, of one sweep point; and a sentence that says which point.

    `beside` are arrays that the cells bring along.
    """
    found = ch.rows(results, choice).sort_values("row")
    point = []
    for axis in results.axes:
        if (count := found[axis].nunique()) > 1:
            first = found[axis].iloc[0]
            found = found[found[axis] == first]
            point.append(f"{axis} {first}, the first of {count}, --where chooses")
    arrays = results.arrays_of(found["cell"], "tokens", {array, *beside})
    made = [Cell(row.label, row.dataset, row.layer, arrays[row.cell]) for row in found.itertuples()]
    if not any(cell.arrays for cell in made):
        raise Refused(f"{results.path} holds no arrays by token, which {kind} draws: `measure: [tokens]` makes them, "
                      "as experiments/token_errors.yaml does")
    made = [cell for cell in made if array in cell.arrays and not np.isnan(cell.arrays[array]).all()]
    if not made:
        raise Refused(f"{results.path} holds no {array} that is a number, which {kind} draws: it is of quantized tokens, and "
                      "of a kvlab that stores it; run the experiment once more by kvlab run --rerun")
    return made, ch.sentence(*point)


def one_layer(made: list[Cell]) -> tuple[list[Cell], str]:
    """The cells of the first dataset and layer, and a sentence that says which."""
    first = made[0]
    same = [cell for cell in made if (cell.dataset, cell.layer) == (first.dataset, first.layer)]
    others = "" if len(same) == len(made) else ", --where layer=… or dataset=… names another"
    return same, f"{first.dataset}, layer {first.layer}{others}"


def above_zero(results: Results, kind: str, panels: list[Panel]) -> list[Panel]:
    """The panels, whose maps have logarithmic colours; refused where none has a value for them."""
    if not any(np.isfinite(heat.z).any() for panel in panels for heat in panel.marks):
        raise Refused(f"{results.path} holds no finite error above 0, which {kind} draws")
    return panels


def labels(made: list[Cell]) -> list[str]:
    return list(dict.fromkeys(cell.label for cell in made))


def over(made: list[Cell]) -> str:
    """What is averaged, in words."""
    parts = [f"{len(values)} {name}s" for name, values in
             (("dataset", {cell.dataset for cell in made}), ("layer", {cell.layer for cell in made})) if len(values) > 1]
    return f"mean over {', '.join(parts)}" if parts else ""
