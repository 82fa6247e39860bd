"""The kinds of pictures, one file each: KIND, TITLE, NEEDS (what a file must hold) and `figure(results, choice)`,
which raises Refused with the way to get what a file lacks."""

from __future__ import annotations

from types import ModuleType

from kvplot.kinds import batch, channels, cumulative, heads, heat, latency, means, norms, pareto, pareto_time, position, tokens

ALL: dict[str, ModuleType] = {
    module.KIND: module
    for module in (pareto, pareto_time, means, heat, heads, norms, channels, tokens, latency, batch, position, cumulative)}
