#!/usr/bin/env python3
"""bpe.py - byte-level BPE compared with the tokenizers and tiktoken packages: learning and encoding one text in one thread.

    bench/bpe.py --python V/bin/python [--library build/liblockstep.so] [--lines 6000] [--rounds 3] runs/kjv.txt

V is an environment with tokenizers and tiktoken; `make demo` writes runs/kjv.txt. lockstep and tokenizers learn 4,096 tokens from the whole
text, with GPT-2's pattern and with cl100k's. Then all three encode it with these merges, the packages its first --lines lines in one call.
The script fails if the merges or the ids differ. The table has the smallest and the largest processor time of the rounds.
"""
import argparse
import os
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SIZE = 4096  # end of text included


def options():
    p = argparse.ArgumentParser(description="byte-level BPE compared with tokenizers and tiktoken")
    p.add_argument("text")
    p.add_argument("--python", default=sys.executable, help="python with tokenizers and tiktoken")
    p.add_argument("--library", default=os.path.join(HERE, "..", "build", "liblockstep.so"))
    p.add_argument("--lines", type=int, default=6000, help="lines that the packages encode")
    p.add_argument("--rounds", type=int, default=3)
    return p.parse_args()


def timed(rounds, call):
    """The result of the last call, and the processor seconds of each."""
    seconds = []
    for _ in range(rounds):
        start = time.process_time()
        result = call()
        seconds.append(time.process_time() - start)
    return result, seconds


def taken(seconds):
    return f"{min(seconds):.2f}-{max(seconds):.2f} s"


def speed(text, seconds):
    rates = [len(text.encode()) / 1e6 / s for s in seconds]
    return f"{min(rates):.1f}-{max(rates):.1f} MB/s"


def saved(fixtures, ours):
    with tempfile.TemporaryDirectory() as folder:
        ours.save(folder)
        return fixtures.Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))


def compare(o, fixtures, name, pattern, text):
    """A line of the table. pattern: as tiktoken writes it."""
    ours, data, part = fixtures.Lockstep(os.path.abspath(o.library), None), text.encode(), "".join(text.splitlines(True)[:o.lines])
    _, learning = timed(o.rounds, lambda: ours.learn(data, name, SIZE))
    hf, hf_learning = timed(o.rounds, lambda: fixtures.learn(text, name, SIZE - 1))
    if fixtures.merges_of(saved(fixtures, ours)) != fixtures.merges_of(hf):
        sys.exit(f"bpe.py: {name}: the merges differ")
    tik = fixtures.tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=fixtures.ranks_of(hf), special_tokens={})

    seconds = []
    for _ in range(o.rounds):  # the tokens are freed as they are read, which is not timed
        tokens, once = timed(1, lambda: ours.tokens(data, 0))
        ours.read(tokens)
        seconds += once
    hf_ids, hf_seconds = timed(o.rounds, lambda: hf.encode(part, add_special_tokens=False).ids)
    tik_ids, tik_seconds = timed(o.rounds, lambda: tik.encode_ordinary(part))
    # tiktoken's ids of single bytes are the bytes; those of lockstep and tokenizers are in GPT-2's order.
    chars = fixtures.byte_of_char()
    pieces = [bytes(chars[c] for c in hf.id_to_token(i)) for i in hf_ids]
    if ours.encode(part, 0) != hf_ids or pieces != [tik.decode_single_token_bytes(i) for i in tik_ids]:
        sys.exit(f"bpe.py: {name}: the ids differ")
    return (f"| {name} | {taken(learning)} | {taken(hf_learning)} | {speed(text, seconds)} | {speed(part, tik_seconds)} "
            f"| {speed(part, hf_seconds)} |")


def main():
    o = options()
    if os.path.abspath(o.python) != sys.executable:
        os.execv(o.python, [o.python, os.path.abspath(__file__), *sys.argv[1:], "--python", os.path.abspath(o.python)])
    os.environ.update(RAYON_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
    sys.path.insert(0, os.path.join(HERE, "..", "tools"))
    import tokenizer_fixtures as fixtures

    text = open(o.text, encoding="utf-8").read()
    print(f"{o.text}: {len(text.encode()) / 1e6:.1f} MB; tokenizers {fixtures.tokenizers.__version__}, "
          f"tiktoken {fixtures.tiktoken.__version__}, {o.rounds} rounds\n")
    print("| pattern | learning: lockstep | tokenizers | encoding: lockstep | tiktoken | tokenizers |\n|---|---|---|---|---|---|")
    for name, pattern in (("gpt2", fixtures.R50K), ("cl100k", fixtures.CL100K)):
        print(compare(o, fixtures, name, pattern, text), flush=True)


if __name__ == "__main__":
    main()
