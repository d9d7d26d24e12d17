"""GRPO in a plain PyTorch loop: sample, reward, compare within the group, step.

``python examples/loops/grpo_loop.py``
"""

import torch

from grpo_kernels import GRPOLossConfig, completion_hidden_states, find_lm_head, linear_grpo_loss


def train(model, prompt_ids, reward, steps=20, group_size=16, new_tokens=4, learning_rate=0.01):
    """One prompt [P]; ``reward(completion_ids [G, T])`` gives [G]. Returns the mean reward of every step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    config = GRPOLossConfig(loss_type="dapo", epsilon=0.2, epsilon_high=0.28)
    prompts = prompt_ids.expand(group_size, -1)
    means = []
    for _ in range(steps):
        with torch.no_grad():
            ids = model.generate(
                prompts, attention_mask=torch.ones_like(prompts), do_sample=True, top_k=0,
                min_new_tokens=new_tokens, max_new_tokens=new_tokens,
            )  # fmt: skip
        rewards = reward(ids[:, prompts.shape[1] :])
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)

        hidden = completion_hidden_states(model, ids, torch.ones_like(ids), new_tokens)
        head = find_lm_head(model)
        completion_ids = ids[:, prompts.shape[1] :]
        output = linear_grpo_loss(hidden, head.weight, completion_ids, advantages, **head.options, config=config)
        output.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        means.append(rewards.mean().item())
    return means


if __name__ == "__main__":
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    tiny = LlamaForCausalLM(LlamaConfig(vocab_size=16, **sizes, bos_token_id=1, eos_token_id=2, pad_token_id=0))
    print(train(tiny, torch.tensor([1, 5, 6]), reward=lambda ids: (ids == 7).float().mean(-1)))
