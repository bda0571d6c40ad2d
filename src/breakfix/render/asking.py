"""Questions to the learner at the terminal: what she expects, and whether she wants to see the answer already."""

import sys
from collections.abc import Sequence
from string import ascii_lowercase
from typing import Any

from rich.text import Text

from breakfix.predict import Scored
from breakfix.render.terminal import console


def can_ask() -> bool:
    """Whether there is somebody at a terminal to answer."""
    return sys.stdin is not None and sys.stdin.isatty() and console.is_terminal


def predictions(asked: Sequence[dict[str, Any]]) -> list[str | None]:
    """The learner's choice for each prediction; None where she skips it, or input ends."""
    console.print("[bold]Before you run it[/]: what do you expect? Enter a letter, or nothing to skip.")
    answers = [_choice(prediction["question"], list(map(str, prediction["choices"]))) for prediction in asked]
    console.print()
    return answers


def scored(prediction: Scored) -> Text:
    """What was expected beside what was measured."""
    sign, colour = ("✓", "green") if prediction.answer == prediction.right else ("≠", "yellow")
    said = f" {prediction.question}\n  you said {prediction.answer}, measured "
    return Text.assemble((sign, colour), said, (prediction.right, "bold"))


def yes(question: str) -> bool:
    """Whether the learner says yes; anything else, and the end of input, is a no."""
    return (_line(f"{question} [y/N] ") or "").lower() in ("y", "yes")


def _choice(question: str, choices: list[str]) -> str | None:
    console.print(f"\n{question}", markup=False)
    by_letter = dict(zip(ascii_lowercase, choices, strict=False))  # letters, as many choices are numbers
    for letter, choice in by_letter.items():
        console.print(f"  {letter}  {choice}", markup=False)
    while answer := _line("> "):
        if answer in choices:
            return answer
        if answer.lower() in by_letter:
            return by_letter[answer.lower()]
        console.print(f"a letter from a to {max(by_letter)}, or nothing to skip")
    return None


def _line(prompt: str) -> str | None:
    try:
        return console.input(prompt, markup=False).strip()
    except EOFError:
        console.print()
        return None
