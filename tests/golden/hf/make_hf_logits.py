#!/usr/bin/env python3
"""Writes the golden logits of HF transformers, for tests/unit/cpu_engine/hf_logits_test.cc.

    python3 make_hf_logits.py OUT

Needs torch and transformers (4.45 or later) and no network. For each case it writes a folder in OUT:

    CASE/config.json               as transformers writes it
    CASE/model.safetensors         random weights (one case is divided into shards with an index)
    CASE/expected.safetensors      tokens I32 [n], logits F32 [n][vocab]: fp32, CPU, eager attention

Weights are drawn larger than in transformers, and norms and biases away from one and zero, so that a wrong
rotation, a missing bias or a swapped head changes the logits by much more than the tolerance.
"""

import json
import os
import sys

import torch
import transformers
from safetensors.torch import save_file

TOKENS = 24

COMMON = dict(
    num_hidden_layers=2,
    num_attention_heads=4,
    vocab_size=96,
    rms_norm_eps=1e-5,
    use_cache=False,
    bos_token_id=1,
    eos_token_id=2,
)
NARROW = dict(hidden_size=48, intermediate_size=64, head_dim=16)  # the query heads are wider than the hidden state
SQUARE = dict(hidden_size=64, intermediate_size=40)

LLAMA3 = dict(
    rope_type="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=256)

# name: (config class, storage, shards, rope theta, rope scaling, config)
CASES = {
    "llama3_scaled": ("LlamaConfig", torch.bfloat16, 1, 500000.0, LLAMA3,
                      dict(NARROW, num_key_value_heads=1, max_position_embeddings=512)),
    "llama_tied": ("LlamaConfig", torch.float16, 1, 10000.0, None,
                   dict(NARROW, num_key_value_heads=4, tie_word_embeddings=True, max_position_embeddings=512)),
    "llama_biased": ("LlamaConfig", torch.bfloat16, 1, 10000.0, None,
                     dict(NARROW, num_key_value_heads=2, attention_bias=True, mlp_bias=True,
                          max_position_embeddings=512)),
    "qwen2_bias": ("Qwen2Config", torch.bfloat16, 1, 1000000.0, None,
                   dict(SQUARE, num_key_value_heads=1, max_position_embeddings=512)),
    "qwen3_qk_norm": ("Qwen3Config", torch.bfloat16, 1, 1000000.0, None,
                      dict(NARROW, num_key_value_heads=1, tie_word_embeddings=True,
                           max_position_embeddings=512)),
    "mistral_sharded": ("MistralConfig", torch.bfloat16, 3, 10000.0, None,
                        dict(NARROW, num_key_value_heads=1, sliding_window=None, max_position_embeddings=512)),
    "qwen2_yarn": ("Qwen2Config", torch.float32, 1, 10000.0, YARN,
                   dict(hidden_size=32, intermediate_size=24, num_key_value_heads=4, tie_word_embeddings=True,
                        max_position_embeddings=1024)),
}


def make_config(kind, theta, scaling, values):
    merged = dict(COMMON, **values)
    merged.setdefault("tie_word_embeddings", False)
    if int(transformers.__version__.split(".")[0]) >= 5:
        merged["rope_parameters"] = dict(scaling or {"rope_type": "default"}, rope_theta=theta)
    else:
        merged["rope_theta"] = theta
        merged["rope_scaling"] = dict(scaling) if scaling else None
    return getattr(transformers, kind)(**merged)


def fill(model, storage, seed):
    """Every parameter from one generator, rounded to the file's format."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            drawn = torch.randn(parameter.shape, generator=generator)
            if name.endswith("norm.weight") or "layernorm" in name:
                drawn = 1 + 0.2 * drawn
            elif name.endswith("bias"):
                drawn = 0.3 * drawn
            elif "embed_tokens" not in name:
                drawn = drawn * (1.5 / parameter.shape[1] ** 0.5)
            parameter.copy_(drawn.to(storage).to(torch.float32))


def save_weights(model, storage, shards, folder):
    tensors = {n: p.detach().to(storage).contiguous().clone() for n, p in sorted(model.named_parameters())}
    if shards == 1:
        save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
        return
    names = sorted(tensors)
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {n: tensors[n] for n in names[shard::shards]}
        weight_map.update({n: file for n in part})
        save_file(part, os.path.join(folder, file), metadata={"format": "pt"})
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as f:
        json.dump(index, f, indent=1, sort_keys=True)


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: make_hf_logits.py OUT")
    for seed, (name, (kind, storage, shards, theta, scaling, values)) in enumerate(CASES.items()):
        folder = os.path.join(sys.argv[1], name)
        os.makedirs(folder, exist_ok=True)
        config = make_config(kind, theta, scaling, values)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        model = model.to(torch.float32).eval()
        fill(model, storage, seed)
        tokens = torch.randint(0, config.vocab_size, (1, TOKENS), generator=torch.Generator().manual_seed(99 + seed))
        with torch.no_grad():
            logits = model(input_ids=tokens).logits[0].to(torch.float32)
        assert logits.shape == (TOKENS, config.vocab_size) and bool(torch.isfinite(logits).all())
        config.architectures = [type(model).__name__]
        with open(os.path.join(folder, "config.json"), "w") as f:
            f.write(config.to_json_string())
        save_weights(model, storage, shards, folder)
        save_file({"tokens": tokens[0].to(torch.int32), "logits": logits.contiguous()},
                  os.path.join(folder, "expected.safetensors"))
        print(f"{name}: logits {float(logits.min()):.3f} to {float(logits.max()):.3f}, "
              f"transformers {transformers.__version__}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
