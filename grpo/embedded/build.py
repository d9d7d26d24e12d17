"""Makes the embedded model: a character tokenizer, a tiny decoder, and a warm start that stops half-way.

    python -m grpo.embedded.build [--output-dir DIR] [--seed N]

Supervised training would soon solve the task. It stops once the model often samples the right answer and is still
often wrong, which is where reinforcement learning has something to do.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from grpo.batch import pad_left
from grpo.data.arithmetic import AdditionProblem, addition_problems
from grpo.embedded import MODEL_PATH
from grpo.sft import SFTConfig, SFTExample, train_supervised

PAD, EOS, UNK = "<pad>", "<eos>", "<unk>"
CHARACTERS = ["\n", *map(chr, range(ord(" "), ord("~") + 1))]
MAX_LENGTH = 256
DEFAULT_SEED = 1  # of the model that ships
LONGEST_ANSWER = 3

TARGET_ACCURACY = 0.35
# Accuracy swings from step to step at this stage: the target is looked for often.
STEPS_BETWEEN_CHECKS = 10
PROBLEMS_PER_CHECK = 500

MODEL_CARD = """\
---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
---

# Two-digit addition, half learnt

The model that `grpo train` improves when no other is named: a decoder of the Llama architecture with {parameters:,}
parameters in float32 and a character tokenizer (printable ASCII). Made by `python -m grpo.embedded.build`; nothing in
it comes from anywhere else.

- Input: `12+34=`, two numbers from 10 to 99. Output: the sum and the end-of-sequence token.
- Training: {steps} supervised steps on the {warm_start:,} sums of the "warm_start" split of `grpo.data.arithmetic`,
  with seed {seed}, until {target:.0%} of some other sums (of the "train" split) were right.
- Greedy accuracy on the {held_out:,} held-out sums, which it has seen in neither order: {accuracy:.1%}.

It knows nothing else. It exists to show and test reinforcement learning in minutes on a CPU.
"""


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character; padding on the left, as generation needs it; no beginning-of-sequence token."""
    vocabulary = {token: number for number, token in enumerate([PAD, EOS, UNK, *CHARACTERS])}
    # Byte-pair encoding without a merge leaves single characters.
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNK))
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        padding_side="left",
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """A new model in float32.

    Llama, because for Qwen2 ``AutoTokenizer`` always makes Qwen2's own tokenizer, whatever the files say. Three layers,
    because two learn the carry much more slowly; initial weights of about 1 / sqrt(hidden_size), because with the usual
    0.02 some seeds take five times as many steps.
    """
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=96,
            intermediate_size=256,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=MAX_LENGTH,
            initializer_range=0.1,
            tie_word_embeddings=True,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
        )
    )


def encode(problem: AdditionProblem, tokenizer: PreTrainedTokenizerFast) -> SFTExample:
    """The prompt, and the answer with the end-of-sequence token."""
    answer = [*tokenizer(problem["answer"])["input_ids"], tokenizer.eos_token_id]
    return SFTExample(tokenizer(problem["prompt"])["input_ids"], answer)


@torch.no_grad()
def greedy_accuracy(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    problems: Sequence[AdditionProblem],
    batch_size: int = 512,
) -> float:
    """The share of problems whose greedy completion is the answer, and ends there."""
    was_training = model.training
    model.eval()
    correct = 0
    for start in range(0, len(problems), batch_size):
        batch = [encode(problem, tokenizer) for problem in problems[start : start + batch_size]]
        prompts, mask = pad_left([example.prompt_ids for example in batch], tokenizer.pad_token_id)
        sequences = model.generate(
            input_ids=torch.tensor(prompts),
            attention_mask=torch.tensor(mask),
            max_new_tokens=LONGEST_ANSWER + 1,
            do_sample=False,
        )
        for example, sequence in zip(batch, sequences.tolist(), strict=True):
            completion = sequence[len(prompts[0]) :]
            correct += completion[: len(example.completion_ids)] == example.completion_ids
    model.train(was_training)
    return correct / len(problems)


def warm_start(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    seed: int,
    target: float = TARGET_ACCURACY,
    max_steps: int = 2000,
) -> int:
    """Train on the warm-start problems until `target` of other problems are right; returns the number of steps.

    The other problems are training problems, so that the held-out ones have no part in making the model.
    """
    examples = [encode(problem, tokenizer) for problem in addition_problems("warm_start")]
    probes = addition_problems("train")[:PROBLEMS_PER_CHECK]

    def reached(step: int, loss: float) -> bool:
        return step % STEPS_BETWEEN_CHECKS == 0 and greedy_accuracy(model, tokenizer, probes) >= target

    config = SFTConfig(
        max_steps=max_steps, batch_size=128, learning_rate=2e-3, warmup_steps=19, min_lr_rate=0.0, seed=seed
    )
    return len(train_supervised(model, examples, tokenizer.pad_token_id, config, reached))


def build(output_dir: Path, seed: int, target: float = TARGET_ACCURACY, max_steps: int = 2000) -> float:
    """Make the model and write its folder; returns its greedy accuracy on the held-out problems."""
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, seed)
    steps = warm_start(model, tokenizer, seed, target, max_steps)
    held_out = addition_problems("held_out")
    accuracy = greedy_accuracy(model, tokenizer, held_out)
    model.save_pretrained(output_dir)
    tokenizer.save_pretrained(output_dir)
    card = MODEL_CARD.format(
        parameters=model.num_parameters(),
        steps=steps,
        warm_start=len(addition_problems("warm_start")),
        seed=seed,
        target=target,
        held_out=len(held_out),
        accuracy=accuracy,
    )
    (output_dir / "README.md").write_text(card, encoding="utf-8")
    return accuracy


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m grpo.embedded.build", description="Make the embedded model.")
    parser.add_argument("--output-dir", type=Path, default=MODEL_PATH, metavar="DIR", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, metavar="N", help="default: %(default)s")
    arguments = parser.parse_args(argv)
    disable_progress_bar()
    torch.set_num_threads(1)  # the order of a sum depends on the number of threads, and so would the model
    accuracy = build(arguments.output_dir, arguments.seed)
    print(f"held-out greedy accuracy {accuracy:.1%}; written to {arguments.output_dir}")


if __name__ == "__main__":
    main()
