"""Supervised fine-tuning without ever holding the logits. ``python examples/loops/sft.py``"""

import torch

from grpo_kernels import completion_hidden_states, find_lm_head, linear_token_logps


def loss(model, ids, attention_mask, completion_mask):
    """The mean negative log-likelihood of the completions.

    ids, attention_mask: [B, S]; completion_mask: [B, T], 1 on the tokens to learn of the last T.
    """
    length = completion_mask.shape[1]
    hidden = completion_hidden_states(model, ids, attention_mask, length)
    head = find_lm_head(model)
    logps = linear_token_logps(hidden, head.weight, ids[:, -length:], mask=completion_mask, **head.options)
    return -logps.sum() / completion_mask.sum()


def train(model, batches, learning_rate=0.01):
    """Returns the loss of every batch ``(ids, attention_mask, completion_mask)``."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    losses = []
    for batch in batches:
        value = loss(model, *batch)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(value.item())
    return losses


if __name__ == "__main__":
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    tiny = LlamaForCausalLM(LlamaConfig(vocab_size=16, **sizes, bos_token_id=1, eos_token_id=2, pad_token_id=0))
    ids = torch.tensor([[1, 5, 6, 7, 8, 2], [1, 9, 10, 11, 2, 0]])
    print(train(tiny, 20 * [(ids, (ids != 0).long(), (ids != 0)[:, -3:].long())]))
