"""What the comparisons with transformers share: the shapes of the models, folders of random weights, and what to do where something is missing."""
import os
import sys

# hidden, layers, query heads, key and value heads, head size, intermediate, vocabulary, tied: src/commands/bench/gpu/shapes.rs has the same.
SHAPES = {
    "0.6b": (1024, 28, 16, 8, 128, 3072, 151936, True),
    "1.7b": (2048, 28, 16, 8, 128, 6144, 151936, True),
    "4b": (2560, 36, 32, 8, 128, 9728, 151936, True),
    "8b": (4096, 36, 32, 8, 128, 12288, 151936, False),
    "tiny": (64, 2, 4, 2, 16, 128, 320, True),
}


def skip_reason(device):
    """Why nothing can be compared here, or None."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if device == "cuda" and not torch.cuda.is_available():
        return "torch has no CUDA device"
    try:
        from transformers import Qwen3Config  # noqa: F401
    except ImportError:
        return "transformers is not installed, or has no Qwen3"
    return None


def make(folder, shape, device):
    """Writes random weights of a shape of Qwen3."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    hidden, layers, heads, kv_heads, head_dim, intermediate, vocab, tied = SHAPES[shape]
    config = Qwen3Config(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=40960,
        rope_theta=1e6,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen3ForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder)


def fill(program, folder, shape, device):
    """Makes the folder where it has no config.json."""
    if os.path.exists(os.path.join(folder, "config.json")):
        return
    if not shape:
        sys.exit(f"{program}: {folder} has no config.json; name a --shape to fill it")
    make(folder, shape, device)
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()


def attempt(work):
    """A peer that does not run is a finding, not the end of the comparison."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001
        return {"failed": f"{type(error).__name__}: {error}"[:500]}
