"""`python -m benchmarks memory`: what it says of a model, from a small one."""

import dataclasses

import pytest

from benchmarks.memory import MODELS, SEQUENCES, Row, as_markdown, most_sequences, simulate, table_rows
from grpo.memory.plan import CONTEXT_BYTES, FRAGMENTATION, GIB
from grpo.memory.step import TrainingPeak

# Two layers of Qwen2.5-0.5B: its embeddings, then what a layer has, then the last norm.
LAYER = 896 * 896 * 2 + 2 * 128 * 896 + 896 + 2 * 128 + 3 * 896 * 4864 + 2 * 896
SMALL = dataclasses.replace(MODELS[0], num_hidden_layers=2, parameters=151936 * 896 + 2 * LAYER + 896)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return simulate(SMALL, "bf16")


def test_the_published_number_of_parameters_is_checked():
    with pytest.raises(ValueError, match="165960320 parameters are simulated; it has 494032768"):
        simulate(dataclasses.replace(SMALL, parameters=MODELS[0].parameters), "bf16")


def test_the_eager_loss_takes_more_and_fewer_sequences_fit(rows):
    found = {row.loss: row for row in rows}
    assert found.keys() == {"eager", "trl", "linear"}
    for count in SEQUENCES:
        assert found["eager"].peaks[count] > max(found["trl"].peaks[count], found["linear"].peaks[count])
    assert found["eager"].largest[16] < found["linear"].largest[16]


def test_nothing_fits_where_not_even_one_sequence_does():
    peak = TrainingPeak(forward=GIB, kept=0, loss=0, backward=0)
    parts = {count: dataclasses.replace(peak, forward=count * GIB) for count in SEQUENCES}
    assert most_sequences(parts, static=16 * GIB, capacity=16 * GIB) == 0
    room = CONTEXT_BYTES + 7 * (1 + FRAGMENTATION) * GIB
    assert most_sequences(parts, static=0, capacity=round(room) + 1) == 7


def test_the_table_says_that_it_is_simulated(rows):
    text = as_markdown(rows)
    assert "Simulated, not measured" in text and "assumed" in text
    for cells in table_rows(rows):
        assert "| " + " | ".join(cells) + " |" in text.splitlines()
