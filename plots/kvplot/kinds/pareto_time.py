"""Error against the time of a decoding step."""

from __future__ import annotations

from kvlab_results import Results

from kvplot import choice as ch
from kvplot.figure import Figure
from kvplot.kinds import pareto

KIND = "pareto_time"
TITLE = "Error against time"
NEEDS = "measure: [attention, kernel_time] on backend cpu or cuda"


def figure(results: Results, choice: ch.Choice) -> Figure:
    x = ch.metric(results, choice.x, ("decode_us", "encode_us"), "the time of this kind",
                  "measure: [attention, kernel_time] on the backend cpu or cuda makes it")
    return pareto.against(results, choice, x, KIND, TITLE)
