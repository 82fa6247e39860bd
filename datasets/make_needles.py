#!/usr/bin/env python3
"""Writes trials of facts hidden in a long text as kvlab.needles/1: what `measure: [needle]` asks a model for."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from kvlab_capture import cli, passages
from kvlab_capture.atomic import require_output, whole_file
from kvlab_capture.cli import UserError, counted
from kvlab_capture.loading import Model, source

SCHEMA = "kvlab.needles/1"
CREATED_BY = "kvlab make_needles.py 1"
DIGITS = 5

CITIES = ("Lisbon", "Oslo", "Cairo", "Lima", "Hanoi", "Quito", "Dublin", "Nairobi", "Prague", "Havana")
WORDINGS = (
    ("The special number of {key} is {value}.", "The special number of {key} is"),
    ("Remember this: the secret code for {key} is {value}.", "The secret code for {key} is"),
    ("One fact matters here. The lucky number in {key} is {value}.", "The lucky number in {key} is"),
)

EXAMPLES = """
Tasks, after RULER (arXiv:2404.06654): single (one fact), keys (the fact among three others of its kind), values (two
numbers of one key, of which the prompt gives the first and the second is asked for), variables (a chain of three assignments). An answer is a number of five digits. A
group of the file is a task at a length and depth; all its prompts are equally long.

example:
  python datasets/make_needles.py --model models/smollm2 --text datasets/cache/texts/austen_emma.txt \\
      --lengths 512,1024 --out datasets/smollm2/needles.h5
"""


@dataclass(frozen=True)
class Trial:
    """Sentences to hide, the first at the depth that is asked for, the others anywhere; a question and its answer."""

    facts: list[str]
    question: str
    answer: str


def number(draw: random.Random) -> str:
    return str(draw.randrange(10 ** (DIGITS - 1), 10**DIGITS))


def single(draw: random.Random) -> Trial:
    fact, question = draw.choice(WORDINGS)
    key, value = draw.choice(CITIES), number(draw)
    return Trial([fact.format(key=key, value=value)], question.format(key=key), value)


def keys(draw: random.Random) -> Trial:
    fact, question = draw.choice(WORDINGS)
    names, values = draw.sample(CITIES, 4), [number(draw) for _ in range(4)]
    facts = [fact.format(key=key, value=value) for key, value in zip(names, values, strict=True)]
    return Trial(facts, question.format(key=names[0]), values[0])


def values(draw: random.Random) -> Trial:
    key, first, second = draw.choice(CITIES), number(draw), number(draw)
    facts = [f"A special number of {key} is {value}." for value in (first, second)]
    return Trial(facts, f"The two special numbers of {key}, in the order of the text, are {first} and", second)


def variables(draw: random.Random) -> Trial:
    names, value = draw.sample("ABCDEFGHJK", 3), number(draw)
    facts = [f"Variable {names[0]} is {value}."]
    facts += [f"Variable {b} is equal to variable {a}." for a, b in zip(names, names[1:], strict=False)]
    return Trial(facts, f"By the assignments in the text, the value of variable {names[2]} is", value)


TASKS: dict[str, Callable[[random.Random], Trial]] = {
    "single": single,
    "keys": keys,
    "values": values,
    "variables": variables,
}


def prompt(tokenizer: Any, hay: list[int], trial: Trial, length: int, depth: float, draw: random.Random) -> list[int]:
    """Exactly `length` tokens: hay with the facts in it, then the question. `hay` has at least `length` tokens."""

    def ids(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]

    facts = [ids(" " + fact) for fact in trial.facts]
    end = ids("\n\n" + trial.question + " ")
    room = length - len(end) - sum(map(len, facts))
    if room < 0:
        raise UserError(f"a prompt of {counted(length, 'token')} has no room for the facts and the question: ask for a larger --lengths")
    places = [round(depth * room)] + [draw.randrange(room + 1) for _ in facts[1:]]
    # What is assigned first must stand first.
    if len(facts) > 1:
        places = [places[0]] + sorted(max(place, places[0]) for place in places[1:])
    result: list[int] = []
    used = 0
    for place, fact in zip(places, facts, strict=True):
        result += hay[used:place] + fact
        used = place
    return result + hay[used:room] + end


def groups(
    tokenizer: Any, hay: list[int], options: argparse.Namespace
) -> Iterator[tuple[str, dict[str, Any], np.ndarray, np.ndarray]]:
    """Name, attributes, prompts [trials, length] and answers [trials, m] of each group."""
    for task in options.tasks:
        for length in options.lengths:
            for depth in options.depths:
                prompts, answers = [], []
                for trial in range(options.trials):
                    draw = random.Random(f"{options.seed} {task} {length} {depth} {trial}")
                    made = TASKS[task](draw)
                    start = draw.randrange(max(1, len(hay) - length))
                    prompts.append(prompt(tokenizer, hay[start:], made, length, depth, draw))
                    answers.append(tokenizer(made.answer, add_special_tokens=False)["input_ids"])
                if len({len(answer) for answer in answers}) > 1:
                    raise UserError(f"the tokenizer gives numbers of {DIGITS} digits unequal numbers of tokens")
                name = f"{task} {length:06d} {round(100 * depth):03d}%"
                attributes = {"task": task, "tokens": length, "depth": depth}
                yield name, attributes, np.array(prompts, np.int32), np.array(answers, np.int32)


def numbers(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """An argparse type: a list with commas."""

    def parse(text: str) -> list[Any]:
        return [kind(part) for part in text.split(",")]

    return parse


def share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected a depth from 0 to 1, got {text!r}")
    return value


def task(text: str) -> str:
    if text not in TASKS:
        raise argparse.ArgumentTypeError(f"expected one of {', '.join(TASKS)}, got {text!r}")
    return text


def main(argv: list[str]) -> int:
    parser = cli.OneLineParser(
        prog="make_needles.py",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", metavar="NAME_OR_FOLDER", required=True, help="whose tokenizer")
    parser.add_argument("--text", metavar="FILE", type=Path, required=True, help="the hay: a UTF-8 text file")
    parser.add_argument("--tasks", type=numbers(task), default=list(TASKS), help=f"of {','.join(TASKS)} (default: all)")
    parser.add_argument("--lengths", type=numbers(cli.positive), default=[512, 1024], help="tokens of a prompt")
    parser.add_argument("--depths", type=numbers(share), default=[0.1, 0.5, 0.9], help="where the fact stands")
    parser.add_argument("--trials", metavar="N", type=cli.positive, default=10, help="of each group (default: 10)")
    parser.add_argument("--seed", type=cli.not_negative, default=0)
    parser.add_argument("--out", metavar="FILE", type=Path, required=True, help="the HDF5 file to write")
    options = parser.parse_args(argv)
    require_output(options.out, SCHEMA)
    model = Model(source(options.model, None))
    hay = model.tokenizer(passages.read_text(options.text), add_special_tokens=False, verbose=False)["input_ids"]
    if len(hay) < max(options.lengths):
        raise UserError(f"{options.text} has {counted(len(hay), 'token')}, fewer than the longest prompt's {max(options.lengths)}")
    with whole_file(options.out) as temporary, h5py.File(temporary, "w") as file:
        file.attrs.update({"schema": SCHEMA, "tokenizer": model.name, "created_by": CREATED_BY})
        for name, attributes, prompts, answers in groups(model.tokenizer, hay, options):
            group = file.create_group(name)
            group.attrs.update(attributes)
            group["prompts"], group["answers"] = prompts, answers
    made = len(options.tasks) * len(options.lengths) * len(options.depths)
    print(f"{options.out}  {counted(made, 'group')}")
    return cli.EXIT_OK


if __name__ == "__main__":
    cli.run(lambda: main(sys.argv[1:]))
