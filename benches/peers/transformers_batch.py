#!/usr/bin/env python3
"""The same samples by transformers on a GPU, in bf16: continuous batching (generate_batch) and plain generate().

usage: transformers_batch.py MODEL_DIR [--shape 0.6b] [--adaroll PATH] [--prompts 64] [--prompt-tokens 1024] [--new-tokens 128]
                             [--device cuda] [--json FILE]

Prompts are the made-up ids of `adaroll bench decode --prompt-tokens`; temperature 1, no filters, no end token. With --shape, a
folder without config.json is filled first: random weights of that shape of Qwen3. With --adaroll, that binary runs the same
prompts on the same folder, before torch takes the GPU's memory. Every way runs twice and the second run counts: the first
compiles, records graphs and sizes caches. Prints one JSON object. Where torch, CUDA or transformers are missing it says so in
`skipped` and ends with status 0: nothing was compared.
"""
import argparse
import json
import os
import subprocess
import sys
import time

from transformers_shapes import SHAPES, attempt, fill, skip_reason


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_dir")
    parser.add_argument("--shape", choices=SHAPES)
    parser.add_argument("--adaroll")
    parser.add_argument("--kernels", help="folder of kernels for adaroll")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--prompt-tokens", type=int, default=1024)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to try the script")
    parser.add_argument("--json")
    return parser.parse_args()


def adaroll(args):
    """The product's figures of the same prompts."""
    command = [args.adaroll, "bench", "decode", "--model", args.model_dir, "--device", args.device, "--json", "--reps", "2"]
    command += ["--prompts", str(args.prompts), "--samples", "1", "--tokens", str(args.new_tokens)]
    command += ["--prompt-tokens", str(args.prompt_tokens), "--max-sequences", str(args.prompts)]
    if args.kernels:
        command += ["--kernels", args.kernels]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        return {"failed": f"adaroll ended with status {done.returncode}"}
    report = json.loads(done.stdout)
    full = report["batches"][-1]
    return {
        "device": report["device"],
        "end_to_end_tokens_per_s": full["end_to_end_tokens_per_s"],
        "decode_tokens_per_s": full["decode_tokens_per_s"],
        "prefill_tokens_per_s": report["prefill_tokens_per_s"],
    }


def rates(args, run):
    """Tokens per second of `run(new tokens)`, which returns how many tokens came."""
    import torch

    def timed(new):
        if args.device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        tokens = run(new)
        if args.device == "cuda":
            torch.cuda.synchronize()
        if tokens != args.prompts * new:
            raise RuntimeError(f"{tokens} tokens came, {args.prompts * new} were asked for")
        return time.perf_counter() - start

    timed(args.new_tokens)
    # Two tokens are the fewest that every version takes; their time beyond one is within the noise of prefill.
    few = 2
    first, total = timed(few), timed(args.new_tokens)
    generated = args.prompts * args.new_tokens
    return {
        "seconds": total,
        "end_to_end_tokens_per_s": generated / total,
        "decode_tokens_per_s": args.prompts * (args.new_tokens - few) / max(total - first, 1e-9),
    }


def transformers(args):
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, GenerationConfig

    model = AutoModelForCausalLM.from_pretrained(args.model_dir, dtype=torch.bfloat16).to(args.device).eval()
    vocab = model.config.vocab_size
    prompts = [[(t * 31 + i * 7 + 3) % vocab for t in range(args.prompt_tokens)] for i in range(args.prompts)]

    def settings(new):
        # No token ends a sample: -1 is none of the vocabulary's.
        return GenerationConfig(
            max_new_tokens=new, min_new_tokens=new, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, eos_token_id=-1, pad_token_id=0
        )

    def plain(new):
        ids = torch.tensor(prompts, device=args.device)
        config = settings(new)
        config.eos_token_id = None
        out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
        return (out.shape[1] - ids.shape[1]) * out.shape[0]

    def continuous(new):
        config = settings(new)
        config.min_new_tokens = None
        out = model.generate_batch(inputs=prompts, generation_config=config, progress_bar=False, persistent_manager=True)
        return sum(len(one.generated_tokens) for one in out.values())

    with torch.inference_mode():
        found = {"transformers": transformers.__version__, "torch": torch.__version__, "generate": attempt(lambda: rates(args, plain))}
        found["generate_batch"] = attempt(lambda: rates(args, continuous))
    if args.device == "cuda":
        found["card"] = torch.cuda.get_device_name()
    return found


def ahead(ours, theirs):
    """How many times faster we are. A call of generate_batch starts and stops a thread, which takes a while whatever there is to do and is
    in end_to_end alone: the smaller of the two ratios is the fair one."""
    keys = ("end_to_end_tokens_per_s", "decode_tokens_per_s")
    if not all(ours.get(key) and theirs.get(key) for key in keys):
        return None
    end_to_end, decode = (ours[key] / theirs[key] for key in keys)
    return {"end_to_end": end_to_end, "decode": decode, "smaller": min(end_to_end, decode), "target": 3.0}


def main():
    args = arguments()
    report = {"shape": args.shape, "prompts": args.prompts, "prompt_tokens": args.prompt_tokens, "new_tokens": args.new_tokens}
    reason = skip_reason(args.device)
    if reason:
        report["skipped"] = reason
    else:
        fill("transformers_batch", args.model_dir, args.shape, args.device)
        if args.adaroll:
            report["adaroll"] = adaroll(args)
        report.update(transformers(args))
        report["ahead_of_continuous_batching"] = ahead(report.get("adaroll", {}), report["generate_batch"])
    text = json.dumps(report, indent=2)
    print(text)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    # A thread of a persistent batching manager would keep the process.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
