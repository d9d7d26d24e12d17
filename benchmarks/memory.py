"""``python -m benchmarks memory``: the memory of one LoRA training step of real models, simulated, without a GPU.

The step is run on tensors that have a size alone (`grpo.memory`), from the models' configurations: weights, adapters of
rank 16 on all linear layers with gradients and AdamW, activation checkpointing, and one micro-batch of sequences of
2,048 tokens, with the attention mask that padded sequences need. Three ways to compute the loss are compared: eager
(the logits, and autograd through their log-softmax in float32), TRL 1.16's tiles of logits that are computed again in
backward, and ours (`linear_grpo_loss`). Nothing here is measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo.memory.plan import CONTEXT_BYTES, FRAGMENTATION, GIB

if TYPE_CHECKING:
    from grpo.memory.step import TrainingPeak

LOSSES = {"eager": "eager", "trl": "TRL's tiles", "linear": "ours"}
PROMPT, COMPLETION = 512, 1536
SEQUENCES = (1, 4, 16)
CARDS = (16, 24, 80)
DTYPES = ("bf16", "nf4")


@dataclass(frozen=True)
class Model:
    """Numbers of a model's config.json on the Hub, and the parameters that its page there states."""

    hub_id: str
    parameters: int
    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    tie_word_embeddings: bool

    @property
    def name(self) -> str:
        return self.hub_id.rpartition("/")[2]

    def config(self) -> Any:
        from transformers import AutoConfig

        numbers = {key: value for key, value in asdict(self).items() if key not in ("hub_id", "parameters")}
        return AutoConfig.for_model(**numbers, max_position_embeddings=32768)


MODELS = (
    Model("Qwen/Qwen2.5-0.5B", 494_032_768, "qwen2", 151936, 896, 4864, 24, 14, 2, True),
    Model("Qwen/Qwen2.5-1.5B", 1_543_714_304, "qwen2", 151936, 1536, 8960, 28, 12, 2, True),
    Model("Qwen/Qwen2.5-3B", 3_085_938_688, "qwen2", 151936, 2048, 11008, 36, 16, 2, True),
    Model("Qwen/Qwen2.5-7B", 7_615_616_512, "qwen2", 152064, 3584, 18944, 28, 28, 4, False),
    Model("meta-llama/Llama-3.1-8B", 8_030_261_248, "llama", 128256, 4096, 14336, 32, 32, 8, False),
    Model("Qwen/Qwen2.5-14B", 14_770_033_664, "qwen2", 152064, 5120, 13824, 48, 40, 8, False),
    Model("Qwen/Qwen2.5-32B", 32_763_876_352, "qwen2", 152064, 5120, 27648, 64, 40, 8, False),
)


@dataclass(frozen=True)
class Row:
    """One model, dtype and loss: bytes of tensors by sequences in the micro-batch, and the most that fit each card."""

    model: str
    dtype: str
    loss: str
    static: int
    peaks: dict[int, int]
    largest: dict[int, int]


def simulate(model: Model, dtype: str) -> list[Row]:
    """The rows of all losses; raises ValueError where the numbers do not make the model that they are said to."""
    from grpo.memory.model import FakePolicy, ModelOptions
    from grpo.memory.step import Sizes, training_peaks

    fake = FakePolicy(model.config(), ModelOptions(load_in_4bit=dtype == "nf4"))
    static = fake.weights + 2 * fake.adapters + fake.optimizer
    if dtype == "bf16":
        base = sum(p.numel() for p in fake.policy.model.parameters() if not p.requires_grad)
        if base != model.parameters:
            raise ValueError(f"{model.hub_id}: {base} parameters are simulated; it has {model.parameters}")
    found: dict[int, dict[str, TrainingPeak]] = {
        count: training_peaks(fake, Sizes(count, count, PROMPT, COMPLETION), tuple(LOSSES)) for count in SEQUENCES
    }
    rows = []
    for loss in LOSSES:
        parts = {count: peaks[loss] for count, peaks in found.items()}
        most = SEQUENCES[-1]
        expected = at_sequences(parts, most)
        if abs(expected - parts[most].total) > 1e-3 * expected:
            raise ValueError(f"{model.hub_id}, {dtype}, {loss}: the peak is not affine in the number of sequences")
        peaks = {count: static + peak.total for count, peak in parts.items()}
        largest = {card: most_sequences(parts, static, card * GIB) for card in CARDS}
        rows.append(Row(model.name, dtype, loss, static, peaks, largest))
    return rows


def at_sequences(parts: dict[int, TrainingPeak], count: int) -> float:
    """The peak with so many sequences: each part of a step is affine in their number, and the peak is the largest."""
    few, more = (parts[n] for n in SEQUENCES[:2])

    def line(a: int, b: int) -> float:
        return a + (b - a) * (count - SEQUENCES[0]) / (SEQUENCES[1] - SEQUENCES[0])

    return max(
        line(few.forward, more.forward),
        line(few.kept + few.loss, more.kept + more.loss),
        line(few.backward, more.backward),
    )


def most_sequences(parts: dict[int, TrainingPeak], static: int, capacity: int) -> int:
    """The largest micro-batch whose tensors fit beside the overhead that `grpo plan` assumes; 0: not one sequence."""

    def total(count: int) -> float:
        peak = parts[count].total if count in parts else at_sequences(parts, count)
        return static + CONTEXT_BYTES + (1 + FRAGMENTATION) * peak

    count = 0
    while total(count + 1) <= capacity:
        count += 1
    return count


def table_rows(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    return [
        (
            f"{row.model} {row.dtype}",
            LOSSES[row.loss],
            *(f"{row.peaks[count] / GIB:.1f}" for count in SEQUENCES),
            *(str(row.largest[card] or "-") for card in CARDS),
        )
        for row in rows
    ]


def as_markdown(rows: Sequence[Row]) -> str:
    """The table, with what its figures are."""
    header = columns()
    lines = ["| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *table_rows(rows))]
    return f"# Memory of a LoRA training step, simulated\n\n{CAPTION}\n\n" + "\n".join(lines) + "\n"


CAPTION = (
    f"Simulated, not measured: GB (2^30 bytes) of tensors at the peak of one training step, with 2k to 32k tokens in "
    f"the micro-batch in sequences of {PROMPT} + {COMPLETION}; LoRA r 16 on all linear layers, AdamW, activation "
    f"checkpointing. On the right the most such sequences in a micro-batch that fit a card beside an assumed "
    f"{CONTEXT_BYTES / GIB} GB for CUDA and {FRAGMENTATION:.0%} of fragmentation."
)


def columns() -> list[str]:
    tokens = [f"{count * (PROMPT + COMPLETION) // 1024}k" for count in SEQUENCES]
    return ["model", "loss", *tokens, *(f"fit {card} GB" for card in CARDS)]


def plot(path: Path, rows: Sequence[Row]) -> None:
    """A panel a model and dtype: peaks against tokens, with the cards as lines."""
    import importlib.util

    if importlib.util.find_spec("matplotlib") is None:
        print("no plot: matplotlib is not installed")
        return
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(row.model for row in rows))
    figure, axes = pyplot.subplots(
        len(DTYPES), len(names), figsize=(2.5 * len(names), 6.2), sharex=True, sharey=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    styles = {"eager": ("tab:gray", "o", "-"), "trl": ("tab:orange", "s", "--"), "linear": ("tab:blue", "^", "-")}
    tokens = [count * (PROMPT + COMPLETION) // 1024 for count in SEQUENCES]
    for (line, dtype), (column, name) in ((a, b) for a in enumerate(DTYPES) for b in enumerate(names)):
        axis = axes[line][column]
        for row in (row for row in rows if (row.model, row.dtype) == (name, dtype)):
            colour, marker, style = styles[row.loss]
            values = [row.peaks[count] / GIB for count in SEQUENCES]
            axis.plot(tokens, values, color=colour, marker=marker, ls=style, ms=4, label=LOSSES[row.loss])
        for card in CARDS:
            axis.axhline(card, color="tab:red", lw=0.7, alpha=0.6)
        axis.set_title(f"{name}, {dtype}", fontsize=9)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log", base=2)
        axis.set_xticks(tokens, [f"{n}k" for n in tokens])
        axis.set_yticks([1, 2, 4, 8, *CARDS, 48, 160], ["1", "2", "4", "8", *map(str, CARDS), "48", "160"])
        axis.minorticks_off()
    axes[0][0].legend(fontsize=8)
    figure.supxlabel("tokens in the micro-batch (sequences of 2,048)", fontsize=10)
    figure.supylabel("GB at the peak", fontsize=10)
    figure.suptitle("Simulated memory of one LoRA training step (red: cards of 16, 24 and 80 GB)", fontsize=11)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    print(f"written: {path}")


def main(argv: Sequence[str] = ()) -> int:
    """Write memory.json, memory.md and memory.png into ``--output-dir``, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks memory", description=__doc__)
    parser.add_argument("--output-dir", type=Path, default=Path("runs/benchmarks"), help="default: runs/benchmarks")
    folder = parser.parse_args(argv).output_dir

    import importlib.metadata

    from .report import print_table, write_json

    rows: list[Row] = []
    for model in MODELS:
        for dtype in DTYPES:
            print(f"simulating {model.name} in {dtype}", flush=True)
            rows += simulate(model, dtype)
    print_table(CAPTION, columns(), table_rows(rows))
    packages = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "peft")}
    write_json(
        folder / "memory.json",
        {
            "kind": "simulated",
            "unit": "bytes",
            "packages": packages,
            "sequence": {"prompt": PROMPT, "completion": COMPLETION},
            "overhead_assumed": {"context": CONTEXT_BYTES, "fragmentation": FRAGMENTATION},
            "models": [asdict(model) | {"source": f"config.json of {model.hub_id} on the Hub"} for model in MODELS],
            "rows": [asdict(row) for row in rows],
        },
    )
    (folder / "memory.md").write_text(as_markdown(rows))
    print(f"written: {folder / 'memory.md'}")
    plot(folder / "memory.png", rows)
    return 0
