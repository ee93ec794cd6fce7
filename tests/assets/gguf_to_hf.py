#!/usr/bin/env python3
"""Convert a GGUF file of the llama architecture into a Hugging Face folder.

usage: gguf_to_hf.py IN.gguf OUT_DIR [--dtype bf16|f32]

Needs numpy and gguf. OUT_DIR receives model.safetensors, config.json,
generation_config.json, tokenizer.json and tokenizer_config.json. Quantised weights
are expanded to f32, then stored as f32 or rounded to bf16 (nearest, ties to even).
Only byte-level BPE tokenizers (the GPT-2 family) are understood.
"""
import argparse
import json
import struct
import sys
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

BYTES_PER_ELEMENT = {"bf16": 2, "f32": 4}

TOP_LEVEL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

# Values of tokenizer.ggml.token_type for tokens that are matched before BPE runs.
CONTROL_TOKEN = 3
USER_DEFINED_TOKEN = 4


class Metadata:
    """The key-value part of a GGUF file."""

    def __init__(self, reader):
        self._fields = reader.fields

    def get(self, key, default=None):
        field = self._fields.get(key)
        return default if field is None else field.contents()

    def model(self, key, default=None):
        return self.get(f"llama.{key}", default)

    def tokenizer(self, key, default=None):
        return self.get(f"tokenizer.ggml.{key}", default)


def half_split_rows(weight, n_heads):
    """Undo the row order that GGUF gives to attn_q and attn_k.

    ggml rotates neighbouring rows (0 with 1, 2 with 3), Hugging Face rotates row i
    of a head with row i + head_dim / 2. The rows of each head were interleaved when
    the GGUF was written.
    """
    rows, columns = weight.shape
    head_dim = rows // n_heads
    interleaved = weight.reshape(n_heads, head_dim // 2, 2, columns)
    return interleaved.swapaxes(1, 2).reshape(rows, columns)


def hugging_face_name(gguf_name):
    if gguf_name in TOP_LEVEL_NAMES:
        return TOP_LEVEL_NAMES[gguf_name]
    parts = gguf_name.split(".")  # blk.LAYER.KIND.weight
    known = len(parts) == 4 and parts[0] == "blk" and parts[3] == "weight"
    if not known or parts[2] not in LAYER_NAMES:
        sys.exit(f"gguf_to_hf: tensor {gguf_name} is not part of a plain llama model")
    return f"model.layers.{parts[1]}.{LAYER_NAMES[parts[2]]}.weight"


def read_weights(reader, metadata):
    """All tensors as f32 arrays under their Hugging Face names, in file order."""
    n_heads = metadata.model("attention.head_count")
    n_kv_heads = metadata.model("attention.head_count_kv")
    weights = {}
    for tensor in reader.tensors:
        name = hugging_face_name(tensor.name)
        shape = [int(n) for n in reversed(tensor.shape)]
        weight = dequantize(tensor.data, tensor.tensor_type)
        weight = weight.astype(np.float32).reshape(shape)
        if name.endswith("q_proj.weight"):
            weight = half_split_rows(weight, n_heads)
        elif name.endswith("k_proj.weight"):
            weight = half_split_rows(weight, n_kv_heads)
        weights[name] = np.ascontiguousarray(weight)
    return weights


def bf16_bits(weight):
    """Round f32 to bf16, nearest with ties to even. The weights hold no NaN."""
    bits = weight.view(np.uint32)
    lowest_kept_bit = (bits >> 16) & 1
    return ((bits + 0x7FFF + lowest_kept_bit) >> 16).astype(np.uint16)


def write_safetensors(weights, path, dtype):
    """Header length (u64), JSON header padded to 8 bytes, then the tensors in order."""
    header = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, weight in weights.items():
        end = offset + weight.size * BYTES_PER_ELEMENT[dtype]
        header[name] = {
            "dtype": dtype.upper(),
            "shape": list(weight.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for weight in weights.values():
            stored = bf16_bits(weight) if dtype == "bf16" else weight
            file.write(stored.tobytes())


def model_config(metadata, tied, dtype):
    eos = metadata.tokenizer("eos_token_id")
    hidden = metadata.model("embedding_length")
    n_heads = metadata.model("attention.head_count")
    # Stored as f32 (9.99999974e-06): give back the decimal number that was meant.
    rms_norm_eps = float(f"{metadata.model('attention.layer_norm_rms_epsilon'):.3g}")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(metadata.tokenizer("tokens")),
        "hidden_size": hidden,
        "intermediate_size": metadata.model("feed_forward_length"),
        "num_hidden_layers": metadata.model("block_count"),
        "num_attention_heads": n_heads,
        "num_key_value_heads": metadata.model("attention.head_count_kv"),
        "head_dim": hidden // n_heads,
        "hidden_act": "silu",
        "max_position_embeddings": metadata.model("context_length"),
        "rope_theta": float(metadata.model("rope.freq_base", 10000.0)),
        "rope_scaling": None,
        "rms_norm_eps": rms_norm_eps,
        "tie_word_embeddings": tied,
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": metadata.tokenizer("bos_token_id"),
        "eos_token_id": eos,
        "pad_token_id": metadata.tokenizer("padding_token_id", eos),
        "torch_dtype": {"bf16": "bfloat16", "f32": "float32"}[dtype],
        "use_cache": True,
        "initializer_range": 0.041666666666666664,
    }


def byte_level(**options):
    return {"type": "ByteLevel", **options, "trim_offsets": True, "use_regex": True}


def pre_tokenizer(metadata):
    words = byte_level(add_prefix_space=False)
    if metadata.tokenizer("pre") != "smollm":
        return words
    digits = {"type": "Digits", "individual_digits": True}
    return {"type": "Sequence", "pretokenizers": [digits, words]}


def tokenizer_json(metadata):
    """The byte-level BPE tokenizer in the format of the `tokenizers` library."""
    if metadata.tokenizer("model") != "gpt2":
        sys.exit("gguf_to_hf: the tokenizer is not a byte-level BPE (gpt2)")
    tokens = metadata.tokenizer("tokens")
    types = metadata.tokenizer("token_type")
    added_tokens = [
        {
            "id": token_id,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for token_id, (token, kind) in enumerate(zip(tokens, types))
        if kind in (CONTROL_TOKEN, USER_DEFINED_TOKEN)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added_tokens,
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer(metadata),
        "post_processor": None,
        "decoder": byte_level(add_prefix_space=True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: token_id for token_id, token in enumerate(tokens)},
            "merges": metadata.tokenizer("merges"),
        },
    }


def tokenizer_config(metadata, config):
    tokens = metadata.tokenizer("tokens")
    unknown = metadata.tokenizer("unknown_token_id")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config["max_position_embeddings"],
        "bos_token": tokens[config["bos_token_id"]],
        "eos_token": tokens[config["eos_token_id"]],
        "pad_token": tokens[config["pad_token_id"]],
        "unk_token": None if unknown is None else tokens[unknown],
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
        "chat_template": metadata.get("tokenizer.chat_template"),
    }


def write_json(value, path, **options):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, **options)


def convert(source, destination, dtype):
    reader = GGUFReader(source)
    metadata = Metadata(reader)
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        sys.exit(f"gguf_to_hf: {source} holds a {architecture} model, not a llama one")

    weights = read_weights(reader, metadata)
    config = model_config(metadata, "lm_head.weight" not in weights, dtype)
    special_ids = ("bos_token_id", "eos_token_id", "pad_token_id")
    generation_config = {key: config[key] for key in special_ids}

    destination.mkdir(parents=True, exist_ok=True)
    write_safetensors(weights, destination / "model.safetensors", dtype)
    write_json(config, destination / "config.json", indent=2)
    write_json(generation_config, destination / "generation_config.json", indent=2)
    write_json(tokenizer_json(metadata), destination / "tokenizer.json", ensure_ascii=False)
    write_json(
        tokenizer_config(metadata, config),
        destination / "tokenizer_config.json",
        indent=2,
        ensure_ascii=False,
    )
    n_parameters = sum(weight.size for weight in weights.values())
    print(f"{len(weights)} tensors, {n_parameters} parameters, stored as {dtype}")


def main():
    parser = argparse.ArgumentParser(description="Convert a llama GGUF to a Hugging Face folder.")
    parser.add_argument("source", type=Path, metavar="IN.gguf")
    parser.add_argument("destination", type=Path, metavar="OUT_DIR")
    parser.add_argument("--dtype", choices=BYTES_PER_ELEMENT, default="bf16")
    arguments = parser.parse_args()
    convert(arguments.source, arguments.destination, arguments.dtype)


if __name__ == "__main__":
    main()
