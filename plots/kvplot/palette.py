"""Colours that people with any colour vision can tell apart, each with a marker of its own as a second sign.

The colours are those of Okabe and Ito (Color Universal Design, 2008) without yellow, which vanishes on white, and with
grey for black, so that all seven are visible on light and dark ground. Maps use matplotlib's cividis, which was made
for this (Nuñez, Anderton and Renslow, 2018).
"""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#666666")
# Names of markers in matplotlib and plotly.
MARKERS = (("o", "circle"), ("s", "square"), ("^", "triangle-up"), ("D", "diamond"), ("v", "triangle-down"),
           ("P", "cross"), ("X", "x"))
NEUTRAL = "#666666"
MAP = "cividis"


def colour(style: int | None) -> str:
    return NEUTRAL if style is None else COLOURS[style % len(COLOURS)]


def marker(style: int | None) -> tuple[str, str]:
    """Differs between styles of one colour: 49 styles are distinct, 98 with hollow ones."""
    return MARKERS[0] if style is None else MARKERS[(style + style // len(COLOURS)) % len(MARKERS)]


def hollow(style: int | None) -> bool:
    """Whether only the marker's edge is drawn."""
    return style is not None and style // (len(COLOURS) * len(MARKERS)) % 2 == 1
