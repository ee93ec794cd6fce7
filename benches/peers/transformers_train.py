#!/usr/bin/env python3
"""Training steps of transformers on a GPU, of the size of those that `adaroll bench gpu` measures.

usage: transformers_train.py MODEL_DIR [--shape 0.6b] [--sequences 4] [--length 2048] [--steps 5] [--device cuda]
                             [--recompute none|layer|both] [--adaroll-json gpu.json] [--json FILE]

A step is what a careful user of transformers writes: model(input_ids, labels=...) without a cache and without a mask, so that attention is
the causal one of sdpa; its loss is the cross entropy of all positions, in f32; backward; clip_grad_norm_ at 1.0; fused AdamW with our
settings; zero_grad(set_to_none=True). Nothing is compiled. Two ways:
  bf16         weights, gradients and moments in bf16: the least memory, and updates below bf16's resolution are lost
  f32_masters  weights, gradients and moments in f32, products in bf16 under autocast: the numerics of our trainer
Layers are recomputed (--recompute layer) by gradient checkpointing, use_reentrant=False. Each combination starts from the folder anew; one
that runs out of memory says so in `failed`, and the next goes on. A folder without config.json is filled first: random weights of the shape.

With --adaroll-json, the figures of the same shape, size and recomputation stand beside, and `ahead` says how many times faster we are. Prints
one JSON object. Where torch, CUDA or transformers are missing it says so in `skipped` and ends with status 0: nothing was compared.
"""
import argparse
import gc
import json
import math
import statistics
import sys
import time

from transformers_shapes import SHAPES, attempt, fill, skip_reason

WAYS = ("bf16", "f32_masters")
# The first steps make the optimizer's state and choose products.
WARM_UP = 2


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_dir")
    parser.add_argument("--shape", choices=SHAPES)
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=5, help="steps that are measured; the median counts")
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to try the script")
    parser.add_argument("--recompute", choices=("none", "layer", "both"), default="both")
    parser.add_argument("--adaroll-json", help="what `adaroll bench gpu --json` wrote on the same card")
    parser.add_argument("--json")
    args = parser.parse_args()
    if min(args.sequences, args.steps) < 1 or args.length < 2:
        parser.error("at least one sequence of two tokens, and one step")
    if args.adaroll_json and not args.shape:
        parser.error("--adaroll-json needs the --shape whose figures are to stand beside")
    return args


def ours(args, modes):
    """The product's figures of the same steps."""
    with open(args.adaroll_json, encoding="utf-8") as file:
        report = json.load(file)
    found = {"card": report["card"]}
    for shape in report["shapes"]:
        for step in shape["training"]:
            same = shape["shape"] == args.shape and (step["sequences"], step["length"]) == (args.sequences, args.length)
            if same and step["recompute"] in modes:
                found[step["recompute"]] = {"step_s": step["step_us"] / 1e6, "tokens_per_s": step["tokens_per_s"]}
    if not any(mode in found for mode in modes):
        found["failed"] = f"no training of {args.shape} with {args.sequences} x {args.length} tokens in {args.adaroll_json}"
    return found


def measure(args, way, recompute):
    """Steps of one way."""
    import torch
    from transformers import AutoModelForCausalLM

    cuda = args.device == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    masters = way == "f32_masters"
    dtype = torch.float32 if masters else torch.bfloat16
    model = AutoModelForCausalLM.from_pretrained(args.model_dir, dtype=dtype, attn_implementation="sdpa").to(args.device).train()
    config = model.config
    if args.shape and (config.hidden_size, config.num_hidden_layers) != SHAPES[args.shape][:2]:
        raise ValueError(f"the model in {args.model_dir} is not of the shape {args.shape}")
    if recompute == "layer":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-5, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)
    # The made-up ids of the other comparisons.
    ids = [[(t * 31 + i * 7 + 3) % config.vocab_size for t in range(args.length)] for i in range(args.sequences)]
    ids = torch.tensor(ids, device=args.device)

    def step():
        # Around the forward pass and the loss alone, as torch advises: what is computed backward takes the types of the way there.
        with torch.autocast(args.device, dtype=torch.bfloat16, enabled=masters):
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def settle():
        if cuda:
            torch.cuda.synchronize()

    losses, times = [], []
    for _ in range(WARM_UP + args.steps):
        settle()
        start = time.perf_counter()
        losses.append(step())
        settle()
        times.append(time.perf_counter() - start)
    # Read after the clock has stopped: a step that computes nothing of use is not to be compared with.
    losses = [float(loss) for loss in losses]
    if not all(map(math.isfinite, losses)):
        raise RuntimeError(f"the losses are {losses}")
    seconds = statistics.median(times[WARM_UP:])
    return {
        "step_s": seconds,
        "tokens_per_s": args.sequences * args.length / seconds,
        "peak_memory_gib": torch.cuda.max_memory_allocated() / 2**30 if cuda else None,
        "first_loss": losses[0],
        "last_loss": losses[-1],
    }


def free(device):
    """Gives back what the last way held; after an error its frames hold it until they are collected."""
    import torch

    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def ahead(report, modes):
    """How many times faster we are, for each way that has figures. The smaller ratio is the one to claim."""
    found, ratios = {}, []
    for mode in modes:
        mine = report["adaroll"].get(mode, {}).get("tokens_per_s")
        theirs = {way: report[mode][way].get("tokens_per_s") for way in WAYS}
        each = {way: mine / theirs[way] for way in WAYS if mine and theirs[way]}
        if each:
            found[mode] = each
            ratios += each.values()
    return {**found, "smaller": min(ratios)} if ratios else None


def train(args, report, modes):
    """Every way with and without recomputation."""
    import torch
    import transformers

    report.update({"transformers": transformers.__version__, "torch": torch.__version__})
    if args.device == "cuda":
        report["card"] = torch.cuda.get_device_name()
    for mode in modes:
        report[mode] = {}
        for way in WAYS:
            report[mode][way] = attempt(lambda: measure(args, way, mode))  # noqa: B023
            free(args.device)
            keep(args, report)


def keep(args, report):
    """A comparison that is stopped leaves what it has."""
    text = json.dumps(report, indent=2)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    return text


def main():
    args = arguments()
    modes = ["none", "layer"] if args.recompute == "both" else [args.recompute]
    report = {"shape": args.shape, "sequences": args.sequences, "length": args.length, "steps": args.steps}
    reason = skip_reason(args.device)
    if reason:
        report["skipped"] = reason
    else:
        fill("transformers_train", args.model_dir, args.shape, args.device)
        if args.adaroll_json:
            report["adaroll"] = attempt(lambda: ours(args, modes))
        train(args, report, modes)
        if args.adaroll_json:
            report["ahead"] = ahead(report, modes)
    print(keep(args, report))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
