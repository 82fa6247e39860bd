"""Hard-wrapped lines become paragraphs: a language model should not see a line break every seventy characters."""

from __future__ import annotations

from collections.abc import Iterable


def reflow(lines: Iterable[str]) -> str:
    """Lines of a paragraph joined by one space, paragraphs by one blank line, one line break at the end."""
    paragraphs: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            paragraphs[-1].append(line.strip())
        elif paragraphs[-1]:
            paragraphs.append([])
    return "\n\n".join(" ".join(paragraph) for paragraph in paragraphs if paragraph) + "\n"
