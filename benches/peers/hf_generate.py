#!/usr/bin/env python3
"""The same rollouts by transformers' generate(), for comparison.

usage: hf_generate.py MODEL_DIR {f32|bf16} PROMPTS SAMPLES NEW_TOKENS THREADS [REPETITIONS]

Samples SAMPLES continuations of the first PROMPTS prompts in one padded batch at
temperature 1. The end token stops nothing. Needs torch and transformers.
"""
import resource
import sys
import time

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from prompts import PROMPTS

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def timed(work):
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def main():
    if len(sys.argv) not in (7, 8) or sys.argv[2] not in DTYPES:
        sys.exit("usage: hf_generate.py MODEL_DIR {f32|bf16} PROMPTS SAMPLES NEW_TOKENS THREADS [REPETITIONS]")
    model_dir, dtype = sys.argv[1], DTYPES[sys.argv[2]]
    n_prompts, n_samples, n_new, n_threads = map(int, sys.argv[3:7])
    repetitions = int(sys.argv[7]) if len(sys.argv) == 8 else 3

    torch.set_num_threads(n_threads)
    tokenizer = AutoTokenizer.from_pretrained(model_dir, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype).eval()
    texts = [text for text in PROMPTS[:n_prompts] for _ in range(n_samples)]
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    prompt_length = inputs["input_ids"].shape[1]
    n_prompt_tokens = int(inputs["attention_mask"].sum())

    def prefill():
        return model(**inputs, use_cache=True, logits_to_keep=1)

    def generate():
        return model.generate(
            **inputs,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            min_new_tokens=n_new,
            max_new_tokens=n_new,
        )

    with torch.inference_mode():
        model(**{name: value[:1] for name, value in inputs.items()})  # warm up
        for repetition in range(repetitions):
            torch.manual_seed(repetition)
            prefill_s, _ = timed(prefill)
            total_s, output = timed(generate)
            if output.shape[1] != prompt_length + n_new:
                sys.exit("hf_generate: generate() stopped early")
            n_tokens = len(texts) * n_new
            print(
                f"rep {repetition}: total {total_s:.2f} s -> {n_tokens / total_s:.1f} tok/s",
                f"| prefill {n_prompt_tokens} tok {prefill_s:.3f} s",
                f"= {n_prompt_tokens / prefill_s:.1f} tok/s",
                flush=True,
            )
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"peak memory {peak_kib / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
