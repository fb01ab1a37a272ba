#!/usr/bin/env python3
"""generate.py - tokens/s of generation compared with transformers' generate, on the same folder, in alternating runs.

    bench/generate.py --folder gpt2-hf [--lockstep build/lockstep] [--python V/bin/python] [--prompts 1 4 16] [--tokens 64] [--rounds 3]

FOLDER is a Hugging Face folder with a byte tokenizer of lockstep, such as `ckpt export` writes. Greedy, fp32, the same number of threads.
Both get prompts of --length bytes, which are as many tokens, and generate exactly --tokens more for each (the end-of-text token is off).
The time covers the prompts and the tokens, without loading the model and, on transformers' side, after an untimed first
generation. The prompts of a batch have one length because transformers pads to the longest; --spread gives them different lengths, on
the left side of which transformers then has padding. The table has medians over the rounds, and the range.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

THEIRS = """
import json, sys, time, torch, transformers
transformers.logging.set_verbosity_error()
folder, threads, tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(threads)
model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
model.generation_config.eos_token_id = None
model.generation_config.pad_token_id = 0
print(json.dumps({"torch": torch.__version__, "transformers": transformers.__version__}), flush=True)
for line in sys.stdin:
    rows = json.loads(line)
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(r)) + r for r in rows])
    mask = torch.tensor([[0] * (longest - len(r)) + [1] * len(r) for r in rows])
    with torch.inference_mode():
        model.generate(ids, attention_mask=mask, max_new_tokens=2, do_sample=False)
        began = time.perf_counter()
        out = model.generate(ids, attention_mask=mask, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
        seconds = time.perf_counter() - began
    assert out.shape[1] == longest + tokens
    print(json.dumps({"seconds": seconds}), flush=True)
"""


def options():
    p = argparse.ArgumentParser(description="tokens/s of generation beside transformers' generate")
    p.add_argument("--folder", required=True, help="Hugging Face folder")
    p.add_argument("--lockstep", default="build/lockstep")
    p.add_argument("--python", default=sys.executable, help="python with torch and transformers")
    p.add_argument("--prompts", type=int, nargs="+", default=[1, 4, 16])
    p.add_argument("--length", type=int, default=32, help="tokens of a prompt")
    p.add_argument("--spread", action="store_true", help="prompts of different lengths, from half of --length on")
    p.add_argument("--tokens", type=int, default=64, help="tokens generated for each prompt")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    return p.parse_args()


def texts(o, n):
    source = "In the beginning God created the heaven and the earth. And the earth was without form, and void; and darkness was upon "
    length = lambda i: o.length - (i * o.length // (2 * n) if o.spread else 0)
    return [(source[3 * i:] + source)[:length(i)].strip().ljust(length(i), "x") for i in range(n)]


def ours(o, lines):
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
        f.write("\n".join(lines))
        f.flush()
        out = subprocess.run([o.lockstep, "generate", o.folder, "--prompts", f.name, "--temperature", "0", "--tokens", str(o.tokens),
                              "--precision.compute=fp32", f"--launch.threads={o.threads}"], check=True, capture_output=True)
    tokens, seconds = re.search(rb": ([\d,]+) tokens in ([\d.]+) s", out.stderr).groups()
    made = int(tokens.replace(b",", b""))
    assert made == len(lines) * o.tokens, f"{made} tokens instead of {len(lines) * o.tokens}: a text ended early"
    return made / float(seconds)


def theirs(process, o, lines):
    process.stdin.write(json.dumps([list(line.encode()) for line in lines]) + "\n")
    process.stdin.flush()
    return len(lines) * o.tokens / json.loads(process.stdout.readline())["seconds"]


def shown(rates):
    return f"{statistics.median(rates):.1f} ({min(rates):.1f}-{max(rates):.1f})"


def main():
    o = options()
    process = subprocess.Popen([o.python, "-c", THEIRS, o.folder, str(o.threads), str(o.tokens)], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)
    versions = json.loads(process.stdout.readline())
    found = {n: ([], []) for n in o.prompts}
    for _ in range(o.rounds):
        for n in o.prompts:
            lines = texts(o, n)
            found[n][0].append(ours(o, lines))
            found[n][1].append(theirs(process, o, lines))
    process.stdin.close()
    print(f"# {o.folder}: greedy, fp32, {o.threads} threads, prompts of {'up to ' if o.spread else ''}{o.length} tokens, "
          f"{o.tokens} new tokens; torch {versions['torch']}, transformers {versions['transformers']}; median (range) of {o.rounds} rounds")
    print("| prompts | lockstep, tokens/s | transformers, tokens/s | ratio |\n|---|---|---|---|")
    for n, (a, b) in found.items():
        print(f"| {n} | {shown(a)} | {shown(b)} | {statistics.median(a) / statistics.median(b):.2f} |")


if __name__ == "__main__":
    main()
