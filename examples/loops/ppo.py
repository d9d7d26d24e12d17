"""PPO (1707.06347) with a value head: advantages per token, by generalised advantage estimation (1506.02438).

``python examples/loops/ppo.py``
"""

import torch

from grpo_kernels import GRPOLossConfig, completion_hidden_states, find_lm_head, linear_grpo_loss, linear_token_logps


def estimate_advantages(rewards, values, gamma=1.0, lam=0.95):
    """[B, T]: ``sum_k (gamma lam)^k delta_{t+k}``, ``delta_t = r_t + gamma V_{t+1} - V_t``; rewards, values [B, T]."""
    advantages, following = torch.zeros_like(values), torch.zeros_like(values[:, 0])
    next_values = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], dim=1)
    deltas = rewards + gamma * next_values - values
    for t in reversed(range(values.shape[1])):
        following = deltas[:, t] + gamma * lam * following
        advantages[:, t] = following
    return advantages


def train(model, value_head, prompt_ids, reward, steps=15, batch=16, new_tokens=4, epochs=2, learning_rate=0.01):
    """``value_head``: Linear(D, 1); ``reward(completion_ids)`` [B] comes with the last token. Returns mean rewards."""
    optimizer = torch.optim.AdamW([*model.parameters(), *value_head.parameters()], lr=learning_rate)
    config = GRPOLossConfig(loss_type="bnpo", epsilon=0.2)
    prompts, means = prompt_ids.expand(batch, -1), []
    for _ in range(steps):
        with torch.no_grad():
            options = {"min_new_tokens": new_tokens, "max_new_tokens": new_tokens, "do_sample": True, "top_k": 0}
            ids = model.generate(prompts, attention_mask=torch.ones_like(prompts), **options)
            completion_ids, mask = ids[:, -new_tokens:], torch.ones_like(ids)
            hidden, head = completion_hidden_states(model, ids, mask, new_tokens), find_lm_head(model)
            old_logps = linear_token_logps(hidden, head.weight, completion_ids, **head.options)
            rewards = torch.zeros_like(old_logps)
            rewards[:, -1] = reward(completion_ids)
            values = value_head(hidden).squeeze(-1)
            advantages = estimate_advantages(rewards, values)
            returns = advantages + values
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        for _ in range(epochs):
            hidden, head = completion_hidden_states(model, ids, mask, new_tokens), find_lm_head(model)
            policy = linear_grpo_loss(
                hidden, head.weight, completion_ids, advantages, old_logps=old_logps, **head.options, config=config
            )
            value_loss = (value_head(hidden).squeeze(-1) - returns).square().mean()
            (policy.loss + 0.5 * value_loss).backward()
            optimizer.step()
            optimizer.zero_grad()
        means.append(rewards.sum(-1).mean().item())
    return means


if __name__ == "__main__":
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    tiny = LlamaForCausalLM(LlamaConfig(vocab_size=16, **sizes, bos_token_id=1, eos_token_id=2, pad_token_id=0))
    print(train(tiny, torch.nn.Linear(32, 1), torch.tensor([1, 5, 6]), lambda ids: (ids == 7).float().mean(-1)))
