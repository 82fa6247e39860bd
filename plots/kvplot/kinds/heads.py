"""Error by layer and head, one map a label."""

from __future__ import annotations

import numpy as np
from kvlab_results import Refused, Results

from kvplot import choice as ch
from kvplot.figure import Axis, Figure, Heat, Panel

KIND = "heads"
TITLE = "Error by layer and head"
NEEDS = "measure: [attention] or [error]"
BY_HEAD = ("out_rel", "attn_kl", "k_nmse")


def figure(results: Results, choice: ch.Choice) -> Figure:
    value = ch.metric(results, choice.value, BY_HEAD, "an error by head", "measure: [attention] makes out_rel by query head")
    found = ch.rows(results, choice)
    heads = results.by_head(value)
    heads = heads[heads["row"].isin(found["row"])]
    if heads.empty:
        raise Refused(f"{results.path}: no cell holds {value} by head; measure: [attention] makes {', '.join(BY_HEAD[:2])}, "
                      f"[error] {BY_HEAD[2]}")
    heads = heads[(heads["value"] > 0) & np.isfinite(heads["value"])]
    if heads.empty:
        raise Refused(f"{results.path}: no head has a finite {value} above 0, which {KIND} draws")
    labels, left_out = ch.at_most([label for label in ch.in_order(found) if label in set(heads["label"])])
    heads = heads[heads["label"].isin(labels)]
    layers, places = sorted(heads["layer"].unique()), sorted(heads["head"].unique())
    means = heads.groupby(["label", "layer", "head"])["value"].mean().unstack("head")
    of = {"kv": "KV head", "query": "query head"}[heads["of"].iloc[0]]
    panels = [Panel(Axis(of), Axis("layer"),
                    [Heat([str(h) for h in places], [str(n) for n in layers],
                          means.loc[label].reindex(index=layers, columns=places).to_numpy())], label)
              for label in labels]
    pooled = ch.pooled(found.assign(layer=0), results.axes)
    return Figure(KIND, TITLE, panels, ch.sentence(pooled, left_out), columns=3, height=0.9,
                  colour=Axis(ch.name_of(value, results), log=True))
