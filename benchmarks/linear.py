"""The loss from hidden states against others, on this machine's CPU: ``python -m benchmarks.linear``.

Same inputs, same process, interleaved rounds; the figure is the median of the rounds as a ratio to ours. A contender
whose loss or gradient is wrong is reported and not timed; one that is not installed is named (`pip install trl
liger-kernel`). Peak memory is what torch's allocator held in a step over what it held before.
"""

from __future__ import annotations

import argparse
import gc
from dataclasses import replace

import torch

from .cases import Case, Inputs, make_inputs
from .contenders import Contender, contenders_of
from .measure import compare, prepare, step

# Hidden size and vocabulary of SmolLM2-135M and Qwen2.5-0.5B.
CASES = (Case(tokens=1024, width=576, vocabulary=49152), Case(tokens=1024, width=896, vocabulary=151936))
OURS = "ours, linear"
NAMES = (OURS, "TRL, chunked", "Liger, chunked", "eager")


def peak_mib(contender: Contender, x: Inputs) -> float:
    """The most memory that torch held at a time during a step, over what it held before, in MiB."""
    source, weight = prepare(x)
    gc.collect()
    with torch.profiler.profile(profile_memory=True) as profile:
        step(contender, x, source, weight)
    held, peak = 0, 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="of the rounds of one case; at least 3 rounds")
    seconds = parser.parse_args().seconds
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, float32, 8 x 128 tokens, frozen head")
    for case in (replace(case, dead=share) for case in CASES for share in (0.0, 0.5)):
        results = {result.contender: result for result in compare(case, "cpu", seconds, NAMES)}
        contenders = {contender.name: contender for contender in contenders_of(case)}
        ours = results[OURS].seconds
        assert ours is not None, results[OURS].reason
        dead = ", half of the groups dead" if case.dead else ""
        print(f"\nD {case.width}, V {case.vocabulary}{dead}: ours {ours:.3f} s")
        for name, result in results.items():
            if result.seconds is None:
                print(f"  {name}: {result.status}, {result.reason}")
                continue
            memory = "" if case.dead else f", peak {peak_mib(contenders[name], make_inputs(case)):7.0f} MiB"
            print(f"  {name:14} {result.seconds / ours:.2f} x{memory}")


if __name__ == "__main__":
    main()
