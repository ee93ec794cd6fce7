#!/usr/bin/env python3
"""Tiny random checkpoints and what transformers computes with them.

usage: make_golden.py OUT [--seed N] [--only NAME] [--shapes] [--forward-only] [--rounded-rope]
                                       (PyPI: torch, transformers, safetensors)

OUT/NAME/ becomes a Hugging Face folder (config.json, model.safetensors or shards), and
OUT/NAME/expected.safetensors holds these tensors, computed in f64 from the stored
weights and cast to f32:

  input_ids     [2, 64]
  logits        [2, 64, vocabulary]
  greedy        [2, 32]  the greedy continuation of each row
  margins       [2, 32]  best minus second-best logit at each greedy step
  loss_weights  [2, 63]
  loss          [1]      sum(w * nll) / sum(|w|) over next-token positions
  grad.PARAM             the gradient of the loss, for every parameter
  adamw5.PARAM           parameters after five AdamW steps on that loss (some checkpoints)

--forward-only keeps the first four. --shapes makes another set of checkpoints, with
awkward sizes and both spellings of rotary scaling; it has no adamw5 tensors.

The values are those of the folder as transformers loads it. --rounded-rope computes them
from the model in memory instead, whose rotary frequencies `model.to(bfloat16)` has
rounded along with the weights: bf16 and f16 checkpoints then give logits that differ by up
to 0.3 from what any loader of the folder computes.
"""
import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

FAMILIES = {
    "llama": (LlamaForCausalLM, LlamaConfig),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config),
}
BASE = dict(
    vocab_size=320,
    intermediate_size=96,
    num_hidden_layers=2,
    max_position_embeddings=512,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
    rms_norm_eps=1e-5,
)
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
ROWS = 2
PROMPT_TOKENS = 64
GREEDY_TOKENS = 32
FORWARD_KEYS = ("input_ids", "logits", "greedy", "margins")


class Checkpoint:
    """One row of the tables below."""

    def __init__(self, family, dtype, *, shard=None, adamw=False, old_rope=False, like=None, **config):
        self.family = family
        self.dtype = dtype
        self.shard = shard  # largest shard, as save_pretrained takes it
        self.adamw = adamw  # also store adamw5.PARAM
        self.old_rope = old_rope  # spell config.json as transformers 4 did
        self.like = like  # take the random numbers of that checkpoint
        self.config = {**BASE, **config}

    @property
    def tied(self):
        return self.config["tie_word_embeddings"]


GOLDEN = {
    "llama-gqa1": Checkpoint(
        "llama",
        torch.bfloat16,
        hidden_size=128,
        num_attention_heads=2,
        num_key_value_heads=2,
        tie_word_embeddings=False,
        rope_theta=10000.0,
    ),
    "llama3-gqa4-tied": Checkpoint(
        "llama",
        torch.bfloat16,
        adamw=True,
        hidden_size=256,
        num_attention_heads=4,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        rope_theta=500000.0,
        rope_scaling=LLAMA3_SCALING,
    ),
    "qwen2-gqa7-bias": Checkpoint(
        "qwen2",
        torch.bfloat16,
        hidden_size=448,
        num_attention_heads=7,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        rope_theta=1000000.0,
    ),
    "qwen3-gqa3-qknorm": Checkpoint(
        "qwen3",
        torch.bfloat16,
        adamw=True,
        hidden_size=96,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=64,
        tie_word_embeddings=False,
        rope_theta=1000000.0,
    ),
    "qwen3-head128": Checkpoint(
        "qwen3",
        torch.float32,
        hidden_size=96,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=128,
        tie_word_embeddings=True,
        rope_theta=1000000.0,
    ),
    "llama-f16-sharded": Checkpoint(
        "llama",
        torch.float16,
        shard="120KB",
        adamw=True,
        hidden_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        tie_word_embeddings=False,
        rope_theta=10000.0,
    ),
}

SHAPES = {
    "llama-head20": Checkpoint(
        "llama",
        torch.float32,
        vocab_size=333,
        intermediate_size=100,
        num_hidden_layers=3,
        hidden_size=80,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=20,
        tie_word_embeddings=False,
        rope_theta=10000.0,
    ),
    "llama-gqa5-head40": Checkpoint(
        "llama",
        torch.bfloat16,
        vocab_size=333,
        intermediate_size=100,
        hidden_size=80,
        num_attention_heads=5,
        num_key_value_heads=1,
        head_dim=40,
        tie_word_embeddings=True,
        rope_theta=10000.0,
    ),
    "qwen2-untied": Checkpoint(
        "qwen2",
        torch.float16,
        num_hidden_layers=3,
        hidden_size=80,
        intermediate_size=100,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=False,
        rope_theta=1000000.0,
    ),
    "qwen3-gqa4": Checkpoint(
        "qwen3",
        torch.bfloat16,
        vocab_size=333,
        num_hidden_layers=3,
        hidden_size=80,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=40,
        tie_word_embeddings=True,
        rope_theta=1000000.0,
    ),
    "llama-one-layer-bias": Checkpoint(
        "llama",
        torch.float32,
        num_hidden_layers=1,
        hidden_size=48,
        num_attention_heads=3,
        num_key_value_heads=3,
        attention_bias=True,
        tie_word_embeddings=False,
        rope_theta=10000.0,
    ),
    "llama3-rope-parameters": Checkpoint(
        "llama",
        torch.bfloat16,
        hidden_size=96,
        num_attention_heads=3,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        rope_theta=500000.0,
        rope_scaling=LLAMA3_SCALING,
    ),
    "llama3-rope-scaling": Checkpoint(
        "llama",
        torch.bfloat16,
        old_rope=True,
        like="llama3-rope-parameters",
        hidden_size=96,
        num_attention_heads=3,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        rope_theta=500000.0,
        rope_scaling=LLAMA3_SCALING,
    ),
}


def random_weights(model, tied):
    """Weights far from their initial values, so that every term matters."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn_like(weight)
            if name.endswith("norm.weight"):
                weight.copy_(1 + 0.3 * noise)
            elif name.endswith("bias"):
                weight.copy_(0.5 * noise)
            elif "embed_tokens" in name and not tied:
                weight.copy_(0.7 * noise)
            else:
                weight.copy_(noise * 1.3 / weight.shape[-1] ** 0.5)


def use_old_rope_spelling(path):
    """rope_parameters -> a top-level rope_theta and rope_scaling, as transformers 4 wrote."""
    config = json.loads(path.read_text())
    scaling = config.pop("rope_parameters")
    config["rope_theta"] = scaling.pop("rope_theta")
    config["rope_scaling"] = scaling
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def greedy_continuation(model, input_ids):
    ids, margins = input_ids, []
    for _ in range(GREEDY_TOKENS):
        best = model(ids).logits[:, -1].topk(2)
        margins.append(best.values[:, 0] - best.values[:, 1])
        ids = torch.cat([ids, best.indices[:, :1]], 1)
    return ids[:, input_ids.shape[1] :].contiguous(), torch.stack(margins, 1)


def weighted_loss(model, ids, weights):
    logprobs = torch.log_softmax(model(ids).logits[:, :-1].double(), -1)
    nll = -logprobs.gather(-1, ids[:, 1:, None]).squeeze(-1)
    return (weights * nll).sum() / weights.abs().sum()


def train_five_steps(model, ids, weights):
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01
    )
    for _ in range(5):
        optimizer.zero_grad()
        weighted_loss(model, ids, weights).backward()
        optimizer.step()


def as_f32(tensor):
    return tensor.detach().float().contiguous()


def expected_values(model, checkpoint, ids, weights):
    with torch.no_grad():
        logits = model(ids).logits
        greedy, margins = greedy_continuation(model, ids)
    loss = weighted_loss(model, ids, weights)
    loss.backward()
    expected = {
        "input_ids": ids,
        "logits": as_f32(logits),
        "greedy": greedy,
        "margins": as_f32(margins),
        "loss_weights": as_f32(weights),
        "loss": as_f32(loss).reshape(1),
    }
    for name, parameter in model.named_parameters():
        expected["grad." + name] = as_f32(parameter.grad)
    if checkpoint.adamw:
        train_five_steps(model, ids, weights)
        for name, parameter in model.named_parameters():
            expected["adamw5." + name] = as_f32(parameter)
    return expected


def make(checkpoint, seed, folder, forward_only, rounded_rope):
    torch.manual_seed(seed)
    model_class, config_class = FAMILIES[checkpoint.family]
    model = model_class(config_class(**checkpoint.config)).eval()
    random_weights(model, checkpoint.tied)
    model = model.to(checkpoint.dtype)
    sharding = {"max_shard_size": checkpoint.shard} if checkpoint.shard else {}
    model.save_pretrained(folder, **sharding)
    if checkpoint.old_rope:
        use_old_rope_spelling(folder / "config.json")
    ids = torch.randint(3, checkpoint.config["vocab_size"], (ROWS, PROMPT_TOKENS))
    loss_weights = torch.randn(ROWS, PROMPT_TOKENS - 1).double()
    if rounded_rope:
        model = model.double()
    else:
        model = model_class.from_pretrained(folder, dtype=torch.float64).eval()
    expected = expected_values(model, checkpoint, ids, loss_weights)
    if forward_only:
        expected = {key: expected[key] for key in FORWARD_KEYS}
    save_file(expected, folder / "expected.safetensors")
    print(
        f"{folder.name}: logit deviation {expected['logits'].std():.2f},",
        f"smallest margin {expected['margins'].min():.4f}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description="Make tiny random checkpoints with expected values.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", metavar="NAME")
    parser.add_argument("--shapes", action="store_true")
    parser.add_argument("--forward-only", action="store_true")
    parser.add_argument("--rounded-rope", action="store_true")
    arguments = parser.parse_args()

    torch.set_num_threads(1)  # sums come out in the same order on every machine
    table = SHAPES if arguments.shapes else GOLDEN
    names = list(table)
    first = 500 if arguments.shapes else 0
    for name, checkpoint in table.items():
        if arguments.only in (None, name):
            seed = 1000 * arguments.seed + first + names.index(checkpoint.like or name)
            folder = arguments.out / name
            make(checkpoint, seed, folder, arguments.forward_only, arguments.rounded_rope)


if __name__ == "__main__":
    main()
