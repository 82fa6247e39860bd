"""Numbers as the page stores them."""


def rounded(value: float) -> float | int:
    """Five digits, one more than is shown, as more only make the page larger; whole numbers are kept whole."""
    return int(value) if value.is_integer() else float(f"{value:.5g}")
