"""Masks come from lengths, and the parts of a window add up to the whole."""

import pytest
import torch

from grpo.batch import Totals, TrainSequence, collate, micro_batches, pad_left, positions, window_share
from grpo.config import LOSS_TYPES
from grpo_kernels import GRPOLossConfig, grpo_loss


def test_real_tokens_with_the_padding_id_stay_real():
    sequences = [TrainSequence((7, 2, 8), (5, 6, 2), 1.0), TrainSequence((2,), (2,), -1.0)]
    batch = collate(sequences, pad=2)
    assert batch.prompt_mask.tolist() == [[1, 1, 1], [0, 0, 1]]
    assert batch.completion_mask.tolist() == [[True, True, True], [True, False, False]]
    assert batch.completion_ids.tolist() == [[5, 6, 2], [2, 2, 2]]
    assert batch.advantages.tolist() == [1.0, -1.0]


def test_each_prompt_is_held_once():
    sequences = [TrainSequence(p, (5,), 0.0) for p in ((3, 4), (3, 4), (9,), (3, 4))]
    batch = collate(sequences, pad=0)
    assert batch.prompt_ids.tolist() == [[3, 4], [0, 9]]
    assert batch.prompt_rows.tolist() == [0, 0, 1, 0]


def test_positions_count_from_the_first_real_token():
    _, mask = pad_left([[5, 6, 7], [5]], pad=0)
    assert positions(torch.tensor(mask)).tolist() == [[0, 1, 2], [0, 0, 0]]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 9])
def test_micro_batches_hold_everything_in_order(size):
    sequences = [TrainSequence((1,), (n,), 0.0) for n in range(5)]
    parts = list(micro_batches(sequences, size))
    assert [s for part in parts for s in part] == sequences
    assert all(len(part) <= size for part in parts)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_micro_batches_do_not_change_the_loss(loss_type, beta):
    torch.manual_seed(0)
    lengths, vocabulary, width = [3, 1, 4, 2, 4], 11, 4
    logits = torch.randn(5, width, vocabulary, dtype=torch.float64)
    ids = torch.randint(vocabulary, (5, width))
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    old, reference = torch.randn(2, 5, width, dtype=torch.float64) * 0.1 - 2.4
    advantages = torch.tensor([1.0, -0.5, 0.0, 2.0, -1.5], dtype=torch.float64)
    config = GRPOLossConfig(loss_type=loss_type, beta=beta, max_completion_length=8)

    def loss(rows: slice, whole: Totals) -> torch.Tensor:
        part = Totals(len(lengths[rows]), sum(lengths[rows]))
        num_items, share = window_share(loss_type, part, whole)
        output = grpo_loss(
            logits[rows].clone(), ids[rows], advantages[rows], completion_mask=mask[rows], old_logps=old[rows],
            ref_logps=reference[rows], num_items_in_batch=num_items, config=config,
        )  # fmt: skip
        return output.loss * share

    whole = Totals(len(lengths), sum(lengths))
    expected = loss(slice(0, 5), whole)
    for parts in ([slice(0, 2), slice(2, 5)], [slice(n, n + 1) for n in range(5)]):
        assert sum(loss(rows, whole) for rows in parts).item() == pytest.approx(expected.item(), abs=1e-12)
