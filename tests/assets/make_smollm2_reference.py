#!/usr/bin/env python3
"""What SmolLM2 computes for the eight prompts of benches/peers/prompts.py.

usage: make_smollm2_reference.py MODEL_DIR OUT.json      (PyPI: torch, transformers)

MODEL_DIR is the folder made by fetch_smollm2.py. OUT.json holds, for each prompt:

  text             the prompt, a finished chat text
  prompt_ids       its token ids, with no special token added
  prompt_logprobs  log-probability of every prompt token after the first, in f64
  greedy_ids       64 greedy tokens by transformers in f32; the end token stops nothing
  margins_f32      at each greedy step, the best logit minus the second best
  logprobs_f32     log-probability of each greedy token at temperature 1
  margins_f64,
  logprobs_f64     the same in f64; the margin is negative where f64 prefers another token

transformers computes norms and rotary angles in f32 even for an f64 model. The f64
values therefore come from `exact_logits`, a forward pass of our own that shares no code
with it and computes everything in f64. `f32_error` is the largest difference
between the two, over the log-probabilities of the greedy tokens.
"""
import json
import sys
from pathlib import Path

import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benches" / "peers"))
from prompts import PROMPTS  # noqa: E402

NEW_TOKENS = 64


def greedy(model, prompt_ids):
    """Plain argmax decoding in f32 with a KV cache. Returns ids and the logits they won."""
    ids, rows, cache = [], [], None
    step = torch.tensor([prompt_ids])
    for _ in range(NEW_TOKENS):
        output = model(input_ids=step, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = output.past_key_values
        logits = output.logits[0, -1]
        rows.append(logits)
        ids.append(int(logits.argmax()))
        step = torch.tensor([[ids[-1]]])
    return ids, torch.stack(rows)


def rms_norm(x, weight, eps):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def rotate(x, theta):
    """Rotary position embedding, half-split layout; x is [heads, tokens, head_dim]."""
    half = x.shape[-1] // 2
    frequency = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * frequency
    cos, sin = angle.cos(), angle.sin()
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def attention(x, weights, prefix, config):
    tokens, head_dim = len(x), config["head_dim"]

    def heads(projection):
        y = x @ weights[f"{prefix}.{projection}.weight"].T
        return y.reshape(tokens, -1, head_dim).transpose(0, 1)

    query = rotate(heads("q_proj"), config["rope_theta"])
    key = rotate(heads("k_proj"), config["rope_theta"])
    value = heads("v_proj")
    group = len(query) // len(key)
    key = key.repeat_interleave(group, 0)
    value = value.repeat_interleave(group, 0)
    scores = query @ key.transpose(1, 2) / head_dim**0.5
    future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    mixed = scores.masked_fill(future, -torch.inf).softmax(-1) @ value
    return mixed.transpose(0, 1).reshape(tokens, -1) @ weights[f"{prefix}.o_proj.weight"].T


def feed_forward(x, weights, prefix):
    gate = torch.nn.functional.silu(x @ weights[f"{prefix}.gate_proj.weight"].T)
    up = x @ weights[f"{prefix}.up_proj.weight"].T
    return (gate * up) @ weights[f"{prefix}.down_proj.weight"].T


def exact_logits(weights, config, ids):
    """Logits [tokens, vocabulary] of a llama model with a tied head, all in f64."""
    eps = config["rms_norm_eps"]
    x = weights["model.embed_tokens.weight"][torch.tensor(ids)]
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}"
        normed = rms_norm(x, weights[f"{name}.input_layernorm.weight"], eps)
        x = x + attention(normed, weights, f"{name}.self_attn", config)
        normed = rms_norm(x, weights[f"{name}.post_attention_layernorm.weight"], eps)
        x = x + feed_forward(normed, weights, f"{name}.mlp")
    x = rms_norm(x, weights["model.norm.weight"], eps)
    return x @ weights["model.embed_tokens.weight"].T


def token_logprobs(logits, ids):
    chosen = torch.tensor(ids)[:, None]
    return logits.log_softmax(-1).gather(-1, chosen)[:, 0]


def margins(logits, ids):
    """The chosen token's logit minus the best of all others."""
    chosen = torch.tensor(ids)[:, None]
    best_other = logits.scatter(-1, chosen, -torch.inf).amax(-1)
    return logits.gather(-1, chosen)[:, 0] - best_other


def reference(text, tokenizer, model, weights, config):
    prompt_ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    greedy_ids, f32_logits = greedy(model, prompt_ids)
    logits = exact_logits(weights, config, prompt_ids + greedy_ids[:-1])
    n_prompt = len(prompt_ids)
    prompt_rows, greedy_rows = logits[: n_prompt - 1], logits[n_prompt - 1 :]
    return {
        "text": text,
        "prompt_ids": prompt_ids,
        "prompt_logprobs": token_logprobs(prompt_rows, prompt_ids[1:]).tolist(),
        "greedy_ids": greedy_ids,
        "margins_f32": margins(f32_logits, greedy_ids).tolist(),
        "logprobs_f32": token_logprobs(f32_logits, greedy_ids).tolist(),
        "margins_f64": margins(greedy_rows, greedy_ids).tolist(),
        "logprobs_f64": token_logprobs(greedy_rows, greedy_ids).tolist(),
    }


def largest_difference(record):
    pairs = zip(record["logprobs_f32"], record["logprobs_f64"])
    return max(abs(a - b) for a, b in pairs)


def write(value, path):
    """JSON with one line per key of a record, so that the file can be read and compared."""
    records = []
    for record in value.pop("prompts"):
        lines = [f"  {json.dumps(key)}: {json.dumps(item)}" for key, item in record.items()]
        records.append(" {\n" + ",\n".join(lines) + "\n }")
    head = "".join(f"{json.dumps(key)}: {json.dumps(item)},\n" for key, item in value.items())
    path.write_text("{\n" + head + '"prompts": [\n' + ",\n".join(records) + "\n]\n}\n")


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: make_smollm2_reference.py MODEL_DIR OUT.json")
    model_dir, out = Path(sys.argv[1]), Path(sys.argv[2])
    config = json.loads((model_dir / "config.json").read_text())
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_dir)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        model_dir, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    weights = {name: weight.double() for name, weight in model.state_dict().items()}

    records = []
    with torch.inference_mode():
        for text in PROMPTS:
            record = reference(text, tokenizer, model, weights, config)
            records.append(record)
            print(
                f"prompt of {len(record['prompt_ids'])} tokens:",
                f"f32 is within {largest_difference(record):.1e} of f64,",
                f"smallest margin {min(record['margins_f64']):.4f}",
                flush=True,
            )
    result = {
        "model": "SmolLM2-135M-Instruct as converted by fetch_smollm2.py (bf16)",
        "made_with": f"torch {torch.__version__}, transformers {transformers.__version__}",
        "f32_error": max(map(largest_difference, records)),
        "prompts": records,
    }
    write(result, out)


if __name__ == "__main__":
    main()
