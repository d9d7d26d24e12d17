"""Direct preference optimisation (2305.18290): the reference is the model without its adapter.

``python examples/loops/dpo.py``
"""

import torch

from grpo_kernels import completion_hidden_states, find_lm_head, linear_token_logps


def sequence_logps(model, ids, attention_mask, completion_mask):
    """[B], the sum over each completion: the tokens of the last T where completion_mask [B, T] is 1."""
    length = completion_mask.shape[1]
    hidden = completion_hidden_states(model, ids, attention_mask, length)
    head = find_lm_head(model)
    return linear_token_logps(hidden, head.weight, ids[:, -length:], mask=completion_mask, **head.options).sum(-1)


def loss(model, chosen, rejected, beta=0.1):
    """``chosen`` and ``rejected`` are ``(ids, attention_mask, completion_mask)`` of the same prompts."""
    margins = []
    for batch in (chosen, rejected):
        with torch.no_grad(), model.disable_adapter():
            reference = sequence_logps(model, *batch)
        margins.append(sequence_logps(model, *batch) - reference)
    return -torch.nn.functional.logsigmoid(beta * (margins[0] - margins[1])).mean()


def train(model, pairs, learning_rate=0.01):
    """Returns the loss of every ``(chosen, rejected)``."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=learning_rate)
    losses = []
    for chosen, rejected in pairs:
        value = loss(model, chosen, rejected)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(value.item())
    return losses


if __name__ == "__main__":
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    base = LlamaForCausalLM(LlamaConfig(vocab_size=16, **sizes, bos_token_id=1, eos_token_id=2, pad_token_id=0))
    tiny = get_peft_model(base, LoraConfig(r=4, target_modules="all-linear"))
    chosen, rejected = torch.tensor([[1, 5, 7, 8]]), torch.tensor([[1, 5, 9, 10]])
    mask = torch.ones(1, 2)
    print(train(tiny, 20 * [((chosen, chosen * 0 + 1, mask), (rejected, rejected * 0 + 1, mask))]))
