"""``python -m benchmarks rewards``: how many completions a second the rewards judge that need processes of their own.

Mathematics beside math-verify called directly, in one process, on the same completions, with the verdicts on which they
differ; code and SQL on the data of `examples/`, whose completions are right. A first round warms up.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from grpo.rewards.code import code_reward
from grpo.rewards.math import math_reward
from grpo.rewards.sql import sql_reward
from grpo.sandbox import run_python

from .report import machine, print_table, write_json

EXAMPLES = Path(__file__).parent.parent / "examples"
GROUP = 8  # completions of each question
SHOWN = 20  # disagreements in the terminal; the file holds all

Row = tuple[str, str]  # a completion and the answer of the data
Verdicts = list[float | None]


def run_rewards(folder: Path, questions: int = 50, completions: int = 48, workers: int = 2, rounds: int = 5) -> int:
    about = machine("cpu")
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    batches = [math_rows(questions, seed) for seed in range(rounds + 1)]
    math = {
        f"math, {workers} processes": lambda rows: ours(rows, workers),
        "math, one process": lambda rows: ours(rows, 1),
        "math-verify itself, one process": math_verify,
    }
    figures, verdicts = {}, {}
    for name, judge in math.items():
        figures[name], verdicts[name] = measured(judge, batches)
    for name, judge in sandboxed(completions, workers).items():
        figures[name], found = measured(judge, [completions] * (rounds + 1))
        if found != [1.0] * completions * rounds:
            raise RuntimeError(f"{name}: a right answer was not rewarded, so that nothing is reported")
    mine, theirs = verdicts["math, one process"], verdicts["math-verify itself, one process"]
    differences = disagreements([row for batch in batches[1:] for row in batch], mine, theirs)
    print_figures(figures)
    print_disagreements(differences, len(mine))
    content = {
        "machine": about,
        "unit": "completions a second",
        "workers": workers,
        "rounds": rounds,
        "rewards": figures,
    }
    write_json(folder / "rewards.json", content | {"math_verdicts": len(mine), "math_disagreements": differences})
    return 0


def measured(judge: Callable[[Any], Verdicts], batches: Sequence[Any]) -> tuple[dict[str, float], Verdicts]:
    """Completions a second over the batches but the first, and their verdicts."""
    rates, verdicts = [], []
    for batch in batches:
        started = time.perf_counter()
        found = judge(batch)
        rates.append(len(found) / (time.perf_counter() - started))
        verdicts.append(found)
    counted = rates[1:]
    figures = {"median": statistics.median(counted), "least": min(counted), "most": max(counted)}
    return figures, [verdict for found in verdicts[1:] for verdict in found]


# Mathematics


def ours(rows: Sequence[Row], workers: int) -> Verdicts:
    completions, answers = zip(*rows, strict=True)
    return math_reward(completions=completions, answer=answers, workers=workers, timeout_s=30.0)


def math_verify(rows: Sequence[Row]) -> Verdicts:
    from math_verify import parse, verify

    return [float(verify(parse(f"${answer}$"), parse(completion))) for completion, answer in rows]


def math_rows(questions: int, seed: int) -> list[Row]:
    """Groups of completions as of GSM8K and MATH, two thirds of them right; every seed has other numbers."""
    draw = random.Random(seed)
    rows = []
    for _ in range(questions):
        answer, right, wrong = draw.choice(KINDS)(draw)
        for _ in range(GROUP):
            given = draw.choice(right if draw.random() < 2 / 3 else wrong)
            rows.append((draw.choice(TEXTS).replace("ANSWER", given), answer))
    return rows


# math-verify does not read <answer>.
TEXTS = (
    "We add the two and simplify.\n\nThe answer is $\\boxed{ANSWER}$.",
    "There are 12 of them, so that 3 * 4 = 12 are left.\n\n**Answer:** $\\boxed{ANSWER}$",
    "Let $x$ be the first of $7$ numbers. Then it follows that \\[\\boxed{ANSWER}\\]",
    "Each costs 5, and she buys 7.\nThe final answer is $ANSWER$.",
)
Question = tuple[str, list[str], list[str]]  # the answer, right forms of it, wrong ones


def integer(draw: random.Random) -> Question:
    n = draw.randint(2, 20000)
    return str(n), [str(n), f"{n:,}", f"{n}.0", f"x = {n}"], [str(n + 1), str(10 * n), f"{n} or {n + 1}", f"-{n}"]


def amount(draw: random.Random) -> Question:
    n, unit = draw.randint(2, 500), draw.choice(["cm", "apples", "minutes"])
    right = [f"{n}", f"{n}\\text{{ {unit}}}", f"{n} {unit}"]
    return f"{n}\\text{{ {unit}}}", right, [f"{n + 2}\\text{{ {unit}}}", f"{n}\\text{{ hours}}", f"{2 * n} {unit}"]


def percentage(draw: random.Random) -> Question:
    n = draw.randint(1, 99)
    return (
        f"{n}\\%",
        [f"{n}\\%", f"{n / 100}", f"\\frac{{{n}}}{{100}}"],
        [f"{n + 1}\\%", f"{100 - n}\\%", f"{n / 1000}"],
    )


def fraction(draw: random.Random) -> Question:
    a, b = draw.randint(1, 30), draw.choice([7, 11, 13, 17])
    right = [f"\\frac{{{a}}}{{{b}}}", f"\\dfrac{{{2 * a}}}{{{2 * b}}}", f"{a}/{b}"]
    return right[0], right, [f"\\frac{{{b}}}{{{a}}}", f"{a / b:.3f}", f"-\\frac{{{a}}}{{{b}}}"]


def root(draw: random.Random) -> Question:
    a, b = draw.randint(2, 9), draw.choice([2, 3, 5, 7])
    right = [f"{a}\\sqrt{{{b}}}", f"\\sqrt{{{a * a * b}}}", f"\\frac{{{a * b}}}{{\\sqrt{{{b}}}}}"]
    return right[0], right, [f"{a}\\sqrt{{{b + 1}}}", f"\\sqrt{{{a * b}}}", f"{a * b**0.5:.3f}"]


def polynomial(draw: random.Random) -> Question:
    a, b = draw.randint(1, 9), draw.randint(1, 9)
    right = [f"(x+{a})(x-{b})", f"x^2+({a - b})x-{a * b}", f"x(x+{a - b})-{a * b}".replace("+-", "-")]
    return right[0], right, [f"(x-{a})(x+{b + 1})", f"x^2+{a + b}x+{a * b}", f"x^2-{a * b}"]


def multiple_of_pi(draw: random.Random) -> Question:
    a, b = draw.randint(1, 9), draw.randint(2, 9)
    right = [f"\\frac{{{a}\\pi}}{{{b}}}", f"{a}\\pi/{b}", f"\\frac{{{a}}}{{{b}}}\\pi"]
    return right[0], right, [f"\\frac{{{a + 1}\\pi}}{{{b}}}", f"\\frac{{{a}}}{{{b}}}", f"{3.14159265 * a / b:.2f}"]


def interval(draw: random.Random) -> Question:
    a, b = draw.randint(-9, 0), draw.randint(1, 9)
    right = [f"[{a},{b})", f"[{a}, {b})", f"x \\in [{a},{b})"]
    return right[0], right, [f"[{a},{b}]", f"({a},{b})", f"[{a},{b + 1})"]


def roots(draw: random.Random) -> Question:
    a, b = draw.sample(range(-9, 10), 2)
    right = [f"{a}, {b}", f"{b},{a}", f"x={a} \\text{{ or }} x={b}", f"\\{{{a},{b}\\}}"]
    return right[0], right, [str(a), f"{a}, {b + 1}", f"{a}, {b}, 10"]


def pair(draw: random.Random) -> Question:
    a, b = draw.sample(range(-9, 10), 2)
    right = [f"({a},{b})", f"\\left({a}, {b}\\right)", f"({a}, {b})"]
    return right[0], right, [f"({b},{a})", f"({a},{b + 1})", f"{a}, {b}"]


def matrix(draw: random.Random) -> Question:
    a, b, c, d = draw.sample(range(-9, 10), 4)

    def written(kind: str, *n: int) -> str:
        return f"\\begin{{{kind}}} {n[0]} & {n[1]} \\\\ {n[2]} & {n[3]} \\end{{{kind}}}"

    right = [written("pmatrix", a, b, c, d), written("bmatrix", a, b, c, d)]
    return right[0], right, [written("pmatrix", a, c, b, d), written("pmatrix", a, b, c, d + 1)]


def word(draw: random.Random) -> Question:
    right, *wrong = draw.sample(["Monday", "Tuesday", "even", "odd", "no", "yes"], 3)
    return f"\\text{{{right}}}", [right, f"\\text{{{right}}}", right.lower()], wrong


# GSM8K's answers are integers; about as often as MATH's are each of the others.
KINDS = (
    *(integer,) * 6, amount, amount, percentage, fraction, fraction, root, polynomial, multiple_of_pi, interval, roots,
    pair, matrix, word,
)  # fmt: skip


def disagreements(rows: Sequence[Row], mine: Verdicts, theirs: Verdicts) -> list[dict[str, Any]]:
    """One for each (final answer, answer) on which the two differ."""
    from grpo.rewards.math import final_answer

    found = {}
    for (completion, answer), own, other in zip(rows, mine, theirs, strict=True):
        if own != other:
            given = final_answer(completion).strip("$")
            found[given, answer] = {"given": given, "answer": answer, "ours": own, "math_verify": other}
    return list(found.values())


# Code and SQL


def sandboxed(count: int, workers: int) -> dict[str, Callable[[int], Verdicts]]:
    code, sql = example_rows("code", count), example_rows("sql", count)
    solutions, tests = [row["solution"] for row in code], [row["tests"] for row in code]
    answers, databases = [row["answer"] for row in sql], [row["database"] for row in sql]
    doubles = ["print(2 * int(input()))"] * count
    pairs = [[{"stdin": "4", "stdout": "8"}]] * count

    def queries(engine: str) -> Verdicts:
        return sql_reward(completions=answers, answer=answers, database=databases, engine=engine, workers=workers)

    return {
        "code, calls (two sandboxes each)": lambda _: code_reward(completions=solutions, tests=tests, workers=workers),
        "code, programs (one sandbox each)": lambda _: code_reward(completions=doubles, tests=pairs, workers=workers),
        "an empty program, one at a time": lambda _: [float(run_python("").exit_code == 0) for _ in range(count)],
        "sql, SQLite": lambda _: queries("sqlite"),
        "sql, DuckDB": lambda _: queries("duckdb"),
    }


def example_rows(name: str, count: int) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (EXAMPLES / name / "train.jsonl").read_text().splitlines()]
    return (found * (count // len(found) + 1))[:count]


# What is shown


def print_figures(figures: dict[str, dict[str, float]]) -> None:
    rows = [(name, *(f"{found[key]:,.1f}" for key in ("median", "least", "most"))) for name, found in figures.items()]
    print_table("completions judged a second", ("", "median", "least", "most"), rows)


def print_disagreements(differences: Sequence[dict[str, Any]], total: int) -> None:
    rows = [(one["given"], one["answer"], f"{one['ours']:g}", f"{one['math_verify']:g}") for one in differences[:SHOWN]]
    title = f"{len(differences)} answers on which ours and math-verify differ, in {total} verdicts ({len(rows)} shown)"
    print_table(title, ("given", "answer of the data", "ours", "math-verify"), rows)
