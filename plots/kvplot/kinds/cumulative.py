"""How few tokens make how much of the error: tokens by falling error, and the share that the first ones hold."""

from __future__ import annotations

import numpy as np
from kvlab_results import Refused, Results

from kvplot import by_token
from kvplot import choice as ch
from kvplot.figure import Axis, Figure, Panel, Series

KIND = "cumulative"
TITLE = "Cumulative share of error by token"
NEEDS = by_token.NEEDS
POINTS = 200  # of a line


def figure(results: Results, choice: ch.Choice) -> Figure:
    array = f"{choice.side[0]}_se"
    cells, point = by_token.cells(results, choice, KIND, array)
    cells = [cell for cell in cells if np.nansum(cell.arrays[array]) > 0]
    if not cells:
        raise Refused(f"{results.path} holds no error of {choice.side}s above 0, which {KIND} draws")
    styles = ch.styles(results)
    marks = [Series("equal shares", [0, 100], [0, 100], None, "dashed", markers=False)]
    for label in by_token.labels(cells):
        shares = [_shares(cell.arrays[array]) for cell in cells if cell.label == label]
        grid = np.linspace(0, 1, POINTS)
        mean = np.mean([np.interp(grid, x, y) for x, y in shares], axis=0)
        marks.append(Series(label, list(100 * grid), list(100 * mean), styles[label], markers=False))
    panel = Panel(Axis("tokens, by falling error (%)"), Axis(f"share of the {choice.side}s' squared error (%)"), marks)
    return Figure(KIND, TITLE, [panel], ch.sentence(by_token.over(cells), point, "errors of a token over all KV heads"))


def _shares(errors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[B, Hkv, T] → share of tokens, share of the error they hold."""
    by_token_ = errors.sum(axis=1).ravel()
    ordered = np.sort(by_token_[~np.isnan(by_token_)])[::-1]
    return np.arange(ordered.size + 1) / ordered.size, np.concatenate([[0], np.cumsum(ordered)]) / ordered.sum()
