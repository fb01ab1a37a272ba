#!/usr/bin/env python3
"""bpe.py - byte-level BPE compared with the tokenizers and tiktoken packages: learning and encoding one text in one thread.

    bench/bpe.py --python V/bin/python [--library build/liblockstep.so] [--lines 6000] [--rounds 3] runs/kjv.txt

V is an environment with tokenizers and tiktoken; `make demo` writes runs/kjv.txt. lockstep learns 4,096 tokens from the whole text, with
GPT-2's pattern and with cl100k's; so does tokenizers, and the merges must be equal. Then all three encode the text with these merges
(the packages its first --lines lines, in one call), and their ids must be equal. The table has the least and the largest processor time
of the rounds.
"""
import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SIZE = 4096


class BpeOptions(ctypes.Structure):
    _fields_ = [("vocab", ctypes.c_int32), ("pattern", ctypes.c_char_p)]


def timed(call, rounds):
    """The result of the last call, and the processor seconds of each."""
    seconds = []
    for _ in range(rounds):
        start = time.process_time()
        result = call()
        seconds.append(time.process_time() - start)
    return result, seconds


def speeds(text, seconds):
    rates = [len(text.encode()) / 1e6 / s for s in seconds]
    return f"{min(rates):.1f}-{max(rates):.1f} MB/s"


def pairs_of(tokenizer):
    """The merges, as pairs of token strings."""
    model = json.loads(tokenizer.to_str())["model"]
    return [tuple(m.split(" ") if isinstance(m, str) else m) for m in model["merges"]]


def measure(library, path, lines, rounds):
    sys.path.insert(0, os.path.join(HERE, "..", "tools"))
    import tokenizer_fixtures as fixtures
    import tiktoken
    import tokenizers

    text = open(path, encoding="utf-8").read()
    data, part = text.encode(), "".join(text.splitlines(True)[:lines])
    lib = ctypes.CDLL(os.path.abspath(library))
    lib.ls_errmsg.restype = ctypes.c_char_p
    print(f"{path}: {len(data) / 1e6:.1f} MB; tokenizers {tokenizers.__version__}, tiktoken {tiktoken.__version__}, {rounds} rounds\n")
    print("| pattern | learning: lockstep | tokenizers | encoding: lockstep | tiktoken | tokenizers |\n|---|---|---|---|---|---|")
    for pattern, regex, tik in (("gpt2", None, fixtures.R50K), ("cl100k", fixtures.LLAMA3, fixtures.CL100K)):
        ours = ctypes.c_void_p()

        def learn():
            lib.ls_tokenizer_close(ctypes.byref(ours))
            options = BpeOptions(SIZE, pattern.encode())
            if lib.ls_tokenizer_train(data, ctypes.c_size_t(len(data)), ctypes.byref(options), ctypes.byref(ours)) < 0:
                raise RuntimeError(lib.ls_errmsg().decode())

        def encode(piece):
            tokens, out = ctypes.c_void_p(), piece.encode()
            lib.ls_tokens_count.restype = ctypes.c_size_t
            if lib.ls_tokenizer_encode(ours, out, ctypes.c_size_t(len(out)), None, ctypes.byref(tokens)) < 0:
                raise RuntimeError(lib.ls_errmsg().decode())
            return tokens

        def read(tokens):
            n = lib.ls_tokens_count(tokens)
            ids = (ctypes.c_int32 * n)()
            lib.ls_tokens_read(tokens, ctypes.c_size_t(0), ctypes.c_size_t(n), ctypes.c_int32(2**31 - 1), ids)
            lib.ls_tokens_close(ctypes.byref(tokens))
            return list(ids)

        learned = timed(learn, rounds)[1]
        pre = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        if regex:
            split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(regex), "isolated")
            pre = tokenizers.pre_tokenizers.Sequence([split, tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

        def learn_theirs():
            t = tokenizers.Tokenizer(tokenizers.models.BPE())
            t.pre_tokenizer = pre
            t.train_from_iterator([text], tokenizers.trainers.BpeTrainer(
                vocab_size=SIZE - 1, show_progress=False, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
            return t

        theirs, learned_theirs = timed(learn_theirs, rounds)
        with tempfile.TemporaryDirectory() as folder:
            if lib.ls_tokenizer_save(ours, folder.encode()) < 0:
                raise RuntimeError(lib.ls_errmsg().decode())
            saved = tokenizers.Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        if pairs_of(saved) != pairs_of(theirs):
            sys.exit(f"bpe.py: {pattern}: the merges differ")
        tikt = tiktoken.Encoding(pattern, pat_str=tik, mergeable_ranks=fixtures.ranks_of(theirs), special_tokens={})

        tokens, seconds = [], []
        for _ in range(rounds):
            one, took = timed(lambda: encode(text), 1)
            tokens, seconds = read(one), seconds + took
        mine = read(encode(part))
        ids_tik, seconds_tik = timed(lambda: tikt.encode_ordinary(part), rounds)
        ids, seconds_theirs = timed(lambda: theirs.encode(part, add_special_tokens=False).ids, rounds)
        # tiktoken numbers the single bytes in their own order, so compare what the tokens are.
        pieces = [tikt.decode_single_token_bytes(i) for i in ids_tik]
        size = ctypes.c_size_t()
        lib.ls_tokenizer_token.restype = ctypes.c_void_p
        mine_pieces = [ctypes.string_at(lib.ls_tokenizer_token(ours, i, ctypes.byref(size)), size.value) for i in mine]
        if mine != ids or mine_pieces != pieces:
            sys.exit(f"bpe.py: {pattern}: the ids differ")
        print(f"| {pattern} | {min(learned):.2f}-{max(learned):.2f} s | {min(learned_theirs):.1f}-{max(learned_theirs):.1f} s "
              f"| {speeds(text, seconds)} | {speeds(part, seconds_tik)} | {speeds(part, seconds_theirs)} |", flush=True)
        lib.ls_tokenizer_close(ctypes.byref(ours))


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("text")
    p.add_argument("--python")
    p.add_argument("--library", default=os.path.join(HERE, "..", "build", "liblockstep.so"))
    p.add_argument("--lines", type=int, default=6000)
    p.add_argument("--rounds", type=int, default=3)
    a = p.parse_args()
    if a.python:
        env = dict(os.environ, RAYON_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1")
        command = [a.python, os.path.abspath(__file__), "--library", a.library, "--lines", str(a.lines), "--rounds", str(a.rounds), a.text]
        sys.exit(subprocess.run(command, env=env, check=False).returncode)
    measure(a.library, a.text, a.lines, a.rounds)


if __name__ == "__main__":
    main()
