#!/usr/bin/env python3
"""hf_roundtrip.py - compares lockstep's Hugging Face folders with transformers, in both directions.

Packages: python3 -m venv V && V/bin/pip install torch transformers safetensors numpy

    hf_roundtrip.py check FOLDER LOGITS   FOLDER as `lockstep ckpt export --to FOLDER` wrote it, LOGITS a
                                          safetensors file with input_ids i32 [B,T] and lockstep's
                                          logits f32 [B,T,V]. transformers loads the folder and
                                          computes the same in fp32. One line; exit 0 equal, 1 not.
    hf_roundtrip.py make FOLDER           writes small models for `lockstep ckpt import --from`, one
                                          folder each, and beside its weights logits.safetensors
                                          (input_ids, logits as above) of what must come out:
        gpt2           as transformers saves it           gpt2_hub      names without "transformer.",
        llama          own head                                         with the mask buffers of old files
        llama_tied     tied head                          llama_sharded several files and an index
        llama_scaled   rotary scaling, today's keys       llama_v4      the same, keys rope_theta and
        llama_bf16     weights in bf16                                  rope_scaling of transformers 4
        mixtral        experts                            mixtral_sharded  a layer's experts in several files
        qwen3_moe      other experts, heads normalized    qwen3         tied head, heads normalized, of 12
        starcoder2     tied head                          starcoder2_relu2  own head, another activation
        gpt2_relu2     GPT-2 with another activation

    hf_roundtrip.py run FOLDER --lockstep build/lockstep
                                          both directions with the command: make, then import every folder,
                                          compare `lockstep generate --logits` with transformers, export
                                          it again and check the exported folder

Equal: largest difference <= 1e-4 of the largest logit, or of 1 if that is more; --tolerance changes it.
"""
import argparse
import json
import os
import subprocess
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from pytorch_ref import (PLAIN, SCALED, fill, make_gpt2, make_llama, make_mixtral, make_qwen3, make_qwen3_moe, make_starcoder2,
                         to_bf16)

B, T = 2, 24


@torch.no_grad()
def logits_of(model, ids):
    return model.eval()(input_ids=ids.long(), use_cache=False).logits.float()


def check(folder, path, tolerance):
    ours = load_file(path)
    ids, logits = ours["input_ids"], ours["logits"].float()
    model, report = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    unmatched = sorted(set(report["missing_keys"]) | set(report["unexpected_keys"]))
    if unmatched:
        print(f"{folder}: FAIL: {len(unmatched)} tensors missing or unexpected, first {unmatched[0]}")
        return 1
    theirs = logits_of(model, ids)
    if theirs.shape != logits.shape:
        print(f"{folder}: FAIL: logits are {list(logits.shape)}, transformers has {list(theirs.shape)}")
        return 1
    worst = (theirs - logits).abs().max().item()
    scale = max(1.0, theirs.abs().max().item())
    good = worst <= tolerance * scale  # false for NaN
    print(f"{folder}: {'ok' if good else 'FAIL'}: {list(logits.shape)} logits, largest {scale:.3g}, "
          f"largest difference {worst:.2e}, allowed {tolerance * scale:.2e}")
    return 0 if good else 1


def as_hub(folder):
    """Names and mask buffers of the GPT-2 files on the hub."""
    path = os.path.join(folder, "model.safetensors")
    tensors = {n.removeprefix("transformer."): t for n, t in load_file(path).items()}
    for i in range(2):
        tensors[f"h.{i}.attn.bias"] = torch.tril(torch.ones(1, 1, 32, 32))
    save_file(tensors, path, metadata={"format": "pt"})


def as_v4(folder):
    """config.json as transformers 4 wrote it."""
    path = os.path.join(folder, "config.json")
    with open(path) as f:
        config = json.load(f)
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope
    config["torch_dtype"] = config.pop("dtype")
    with open(path, "w") as f:
        json.dump(config, f, indent=2)


def make(root):
    cases = {  # name: model, options of save_pretrained, change to the saved folder
        "gpt2": (make_gpt2(), {}, None),
        "gpt2_hub": (make_gpt2(), {}, as_hub),
        "llama": (make_llama(False, PLAIN), {}, None),
        "llama_tied": (make_llama(True, PLAIN), {}, None),
        "llama_scaled": (make_llama(False, SCALED), {}, None),
        "llama_v4": (make_llama(False, SCALED), {}, as_v4),
        "llama_sharded": (make_llama(False, PLAIN), {"max_shard_size": "40KB"}, None),
        "llama_bf16": (to_bf16(make_llama(False, PLAIN)), {}, None),
        "mixtral": (make_mixtral(), {}, None),
        "mixtral_sharded": (make_mixtral(), {"max_shard_size": "9KB"}, None),
        "qwen3_moe": (make_qwen3_moe(), {}, None),
        "qwen3": (make_qwen3(), {}, None),
        "starcoder2": (make_starcoder2(), {}, None),
        "starcoder2_relu2": (make_starcoder2("relu2", False), {}, None),
        "gpt2_relu2": (make_gpt2("relu2"), {}, None),
    }
    for i, (name, (model, options, change)) in enumerate(cases.items()):
        folder = os.path.join(root, name)
        fill(model, 100 + i).save_pretrained(folder, **options)
        if change:
            change(folder)
        ids = torch.randint(97, (B, T), generator=torch.Generator().manual_seed(i), dtype=torch.int32)
        logits = logits_of(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), ids)
        same = logits_of(model.float(), ids)
        if not torch.allclose(logits, same, atol=1e-5):
            sys.exit(f"{folder}: transformers does not read back what was written")
        save_file({"input_ids": ids, "logits": logits}, os.path.join(folder, "logits.safetensors"))
        files = [f for f in os.listdir(folder) if f.startswith("model")]
        print(f"{folder}: {len(files)} weight files")
    return 0


def round_trip(root, lockstep, tolerance):
    """make() and back; the number of folders that failed, at most 1."""
    def command(*words):
        print("$", *words)
        subprocess.run([lockstep, *words], check=True, stdout=subprocess.DEVNULL)

    make(root)
    wrong = 0
    for name in sorted(os.listdir(root)):
        folder = os.path.join(root, name)
        there, back = os.path.join(folder, "imported"), os.path.join(folder, "exported")
        path = os.path.join(folder, "lockstep.safetensors")
        ids = load_file(os.path.join(folder, "logits.safetensors"))["input_ids"][0].tolist()
        command("ckpt", "import", "--from", folder, "--to", there)
        there = os.path.join(there, "step_00000000")
        command("generate", there, "--precision.compute=fp32", "--ids", ",".join(map(str, ids)), "--logits", path)
        wrong |= check(folder, path, tolerance)
        command("ckpt", "export", there, "--to", back)
        wrong |= check(back, path, tolerance)
    return wrong


def main():
    p = argparse.ArgumentParser(description="hold Hugging Face folders against transformers")
    sub = p.add_subparsers(dest="verb", required=True)
    c = sub.add_parser("check", help="compare transformers' logits of an exported folder with lockstep's")
    c.add_argument("folder")
    c.add_argument("logits", help="safetensors file with input_ids and logits")
    c.add_argument("--tolerance", type=float, default=1e-4)
    m = sub.add_parser("make", help="write small folders and their logits")
    m.add_argument("folder")
    r = sub.add_parser("run", help="import, compare, export, compare with the lockstep command")
    r.add_argument("folder", help="new or empty")
    r.add_argument("--lockstep", default="build/lockstep")
    r.add_argument("--tolerance", type=float, default=1e-4)
    o = p.parse_args()
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("highest")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if o.verb == "check":
        return check(o.folder, o.logits, o.tolerance)
    if o.verb == "make":
        return make(o.folder)
    return round_trip(o.folder, o.lockstep, o.tolerance)


if __name__ == "__main__":
    sys.exit(main())
