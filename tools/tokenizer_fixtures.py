#!/usr/bin/env python3
"""Tokenizer fixtures from the `tokenizers` and `tiktoken` packages, and a comparison with them at any size.

usage: tokenizer_fixtures.py write FOLDER             writes tests/data/tokenizers
       tokenizer_fixtures.py compare LIBRARY FOLDER LINES [FILE...]
                                                      LIBRARY: a shared library with lockstep's ls_ functions

The text is made line by line by a counter-based generator that tests/test_data_tokenizer.c repeats: words,
contractions, digits, every kind of white space, code points of all planes, emoji, combining marks, Hangul, code,
long runs. Fixtures hold small tokenizers that the packages trained on it, and hashes of the ids they give for it.
compare also covers every code point (in a word; after a space, a digit, an apostrophe, a newline) and files.
"""
import ctypes
import json
import os
import sys
import time

import tiktoken
import tokenizers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

MASK = (1 << 64) - 1
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
# As tiktoken writes them; lockstep writes them differently.
R50K = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$"
          r"|\s*[\r\n]|\s+(?!\S)|\s")
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
SPECIALS = {
    "r50k": {"<|endoftext|>": 50256},
    "cl100k": {"<|endoftext|>": 100257, "<|fim_prefix|>": 100258, "<|fim_middle|>": 100259,
               "<|fim_suffix|>": 100260, "<|endofprompt|>": 100276},
    "o200k": {"<|endoftext|>": 199999, "<|endofprompt|>": 200018},
}
PATTERNS = {"r50k": R50K, "cl100k": CL100K, "o200k": O200K}

FRAGMENTS = {
    "word": "the of and to in that he shall unto for his LORD they be is him not them it with all thou thy was God "
            "which my me said but ye their have will from by as are when this out were upon man you Israel king had "
            "there we then people came before hand one these things also over went Train transformer gradient "
            "HTTPServer iPhone naïve façade Übergröße ĳsvrij ſtraße ᾳ Ǆemal ﬁnd ꭓ Привет мир Ελλάδα שלום مرحبا नमस्ते "
            "สวัสดี 你好世界 こんにちは カタカナ 한국어".split(" "),
    "contraction": ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'T", "'RE", "'Ve", "'M", "'lL", "'D", "'\u017f",
                    "\u2019s", "'", "''", "'x", " 's", "'st", "'LL'd"],
    "space": [" ", "\t", "\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x1f", "\x85", "\xa0", "\u1680", "\u180e", "\u2000", "\u2003",
              "\u200a", "\u200b", "\u2028", "\u2029", "\u202f", "\u205f", "\u2060", "\u3000", "\ufeff", "\n\n", " \n", "\n ", "\t\t"],
    "code": ["for (int i = 0; i < n; i++) {\n\t", "</div>", "==", "!==", "/*", "*/\n", "//", "#include <stdio.h>\n", "\\n",
             "x->y", "a_b", "0x7f", "1e-5", "3.14", "{\"k\": [1, 2]}", "<|endoftext|>", "<|fim_prefix|>", "<|end", "|>", "$$",
             "@@", "...", "--", "https://example.org/a?b=c&d=%20", "def f(x):\n    return x\n", "\u2026", "\u2014"],
}


class Draw:
    """splitmix64 of (line, counter)."""

    def __init__(self, line):
        self.at = line << 20

    def below(self, n):
        self.at += 1
        z = (self.at * 0x9E3779B97F4A7C15) & MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return ((z ^ (z >> 31)) >> 16) % n

    def point(self, first, last):
        c = first + self.below(last - first + 1)
        return "" if 0xD800 <= c < 0xE000 or c == 0 else chr(c)

    def pick(self, kind):
        return FRAGMENTS[kind][self.below(len(FRAGMENTS[kind]))]

    def points(self, first, last, most):
        return "".join([self.point(first, last) for _ in range(1 + self.below(most))])


def item(d):
    kind = d.below(20)
    if kind < 5:
        return (" " if d.below(4) else "") + d.pick("word")
    if kind == 5:
        return d.points(ord("a"), ord("z"), 10)
    if kind == 6:
        return d.pick("word") + d.pick("contraction")
    if kind == 7:
        return d.points(ord("0"), ord("9"), 7)
    if kind == 8:
        return " " * (1 + d.below(5))
    if kind == 9:
        return d.pick("space") + d.pick("space")
    if kind == 10:
        return d.point(1, 0x10FFFF)
    if kind == 11:
        return d.points(0x80, 0x2FFF, 3)
    if kind == 12:
        return d.point(0x1F300, 0x1FAFF) + ["", "\u200d", "\ufe0f", "\U0001f3fd"][d.below(4)]
    if kind == 13:
        return d.points(ord("A"), ord("z"), 2) + d.points(0x300, 0x36F, 3)
    if kind == 14:
        return d.points(0x1100, 0x11FF, 3) + d.points(0xAC00, 0xD7A3, 3)
    if kind == 15:
        return d.points(0x4E00, 0x9FFF, 6)
    if kind == 16:
        return d.pick("code")
    if kind == 17:
        return d.points(0x21, 0x40, 4)
    if kind == 18:
        return d.points(0x10000, 0x1FFFF, 2)
    return ["a", " ", "=", "ab", "\u00e9", "\n", "0", "\U0001f600"][d.below(8)] * (1 + d.below(120))


def line(n):
    d = Draw(n)
    return "".join([item(d) for _ in range(d.below(24))])


def chosen_points(every):
    for c in range(1, 0x110000):
        if not 0xD800 <= c < 0xE000 and (every or c < 0x3400 or 0xA000 <= c < 0x20000 or c % 64 == 0):
            yield c


def point_texts(every):
    """One text per block of 256 code points: in a word, after a space, a digit, an apostrophe, a newline, alone."""
    block, text = -1, []
    for c in chosen_points(every):
        if c >> 8 != block:
            if text:
                yield "".join(text)
            block, text = c >> 8, []
        x = chr(c)
        text.append(f"x{x}X {x} 1{x}'{x}\n{x}")
    yield "".join(text)


# ---- the oracles: name -> (encode a list of texts, file name, ids of special tokens spelled in the text are found) ----

def train(pre, text, size, normalizer=None, ignore_merges=False):
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    t.pre_tokenizer, t.decoder = pre, decoders.ByteLevel()
    if normalizer:
        t.normalizer = normalizer
    t.train_from_iterator(text, trainers.BpeTrainer(vocab_size=size, show_progress=False, special_tokens=["<|endoftext|>"],
                                                    initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return t


def byte_of_char():
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    chars = {chr(b): b for b in keep}
    chars.update({chr(256 + n): b for n, b in enumerate(b for b in range(256) if b not in keep)})
    return chars


def ranks_of(t):
    """Ranks as tiktoken expects them, from a trained tokenizer's merges."""
    chars, ranks = byte_of_char(), {bytes([b]): b for b in range(256)}
    for left, right in merges_of(t):
        ranks.setdefault(bytes(chars[c] for c in left + right), len(ranks))
    return ranks


def write_ranks(path, ranks):
    import base64
    with open(path, "w") as f:
        for token, rank in sorted(ranks.items(), key=lambda kv: kv[1]):
            f.write(base64.b64encode(token).decode() + f" {rank}\n")


def read_ranks(path):
    import base64
    return {base64.b64decode(a): int(b) for a, b in (row.split() for row in open(path))}


def llama3_json(t):
    """The trained tokenizer in Llama 3's form: a template that begins with a token, merges as pairs."""
    j = json.loads(t.to_str())
    j["post_processor"] = {"type": "Sequence", "processors": [
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
        {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
                                                  {"Sequence": {"id": "A", "type_id": 0}}],
         "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
         "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}}}]}
    j["model"]["merges"] = [m.split(" ") if isinstance(m, str) else m for m in j["model"]["merges"]]
    return j


def gpt2_json(t):
    """Merges as strings, as GPT-2's file has them, and an added token that is not special."""
    j = json.loads(t.to_str())
    j["model"]["merges"] = [m if isinstance(m, str) else " ".join(m) for m in j["model"]["merges"]]
    j["added_tokens"].append({"id": len(j["model"]["vocab"]), "content": "return x", "single_word": False, "lstrip": False,
                              "rstrip": False, "normalized": True, "special": False})
    return j


def make_tokenizers(folder):
    text = [line(n) for n in range(1000000, 1012000)]
    split = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
                                     pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=True)])
    gpt2 = train(pre_tokenizers.ByteLevel(add_prefix_space=False), text, 1500)
    llama3 = train(split, text, 1500, ignore_merges=True)
    nfc = train(digits, text, 1200, normalizer=normalizers.NFC())
    for name, j in (("gpt2", gpt2_json(gpt2)), ("llama3", llama3_json(llama3)), ("nfc_digits", json.loads(nfc.to_str()))):
        json.dump(j, open(f"{folder}/{name}.json", "w"), ensure_ascii=False, separators=(",", ":"))
    write_ranks(f"{folder}/mixed.tiktoken", ranks_of(llama3))


def oracles(folder):
    for name in ("gpt2", "llama3", "nfc_digits"):
        t = Tokenizer.from_file(f"{folder}/{name}.json")
        yield (name, f"{folder}/{name}.json", True,
               lambda texts, t=t: [e.ids for e in t.encode_batch(texts, add_special_tokens=False)])
    ranks = read_ranks(f"{folder}/mixed.tiktoken")
    for name, pattern in PATTERNS.items():
        e = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=SPECIALS[name])
        yield (name, f"{folder}/mixed.tiktoken:{name}", False, e.encode_ordinary_batch)
        yield (name + "+special", f"{folder}/mixed.tiktoken:{name}", True,
               lambda texts, e=e: e.encode_batch(texts, allowed_special="all"))


def hash_ids(lists):
    h = 0xCBF29CE484222325
    for ids in lists:
        for i in ids:
            h = ((h ^ i) * 0x100000001B3) & MASK
        h = ((h ^ 0xFFFFFFFF) * 0x100000001B3) & MASK
    return "%016x" % h


# The patterns that lockstep trains with, as the tokenizers package writes them. None: its own of GPT-2.
TRAINED = {"gpt2": None, "cl100k": LLAMA3, "o200k": O200K}


def learn(text, name, size):
    """What the tokenizers package learns from one text with that pattern of lockstep's: size tokens, without the end of text."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if TRAINED[name]:
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(TRAINED[name]), "isolated"),
                                                   pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.train_from_iterator([text], trainers.BpeTrainer(vocab_size=size, show_progress=False,
                                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return t


def merges_of(t):
    """The merges, as pairs of token strings."""
    return [tuple(m.split(" ") if isinstance(m, str) else m) for m in json.loads(t.to_str())["model"]["merges"]]


def trained():
    """What the tokenizers package learns from one text, with the patterns that lockstep trains with."""
    text = "".join([line(n) for n in range(2000000, 2003000)])
    for name in TRAINED:
        t = learn(text, name, 2000)
        vocab = t.get_vocab()
        pairs = [[vocab[a], vocab[b]] for a, b in merges_of(t)]
        yield {"pattern": name, "vocab": t.get_vocab_size() + 1, "merges": len(pairs), "hash": hash_ids(pairs)}


def write(folder):
    os.makedirs(folder, exist_ok=True)
    make_tokenizers(folder)
    out = {"made_with": {"tokenizers": tokenizers.__version__, "tiktoken": tiktoken.__version__},
           "fragments": FRAGMENTS, "lines_a_block": 500, "blocks": 20, "trained": list(trained()), "tokenizers": []}
    points = list(point_texts(False))
    for name, spec, specials, encode in oracles(folder):
        lines = [hash_ids(encode([line(b * 500 + i) for i in range(500)])) for b in range(20)]
        groups = [hash_ids(encode(points[i:i + 32])) for i in range(0, len(points), 32)]
        out["tokenizers"].append({"name": name, "file": os.path.basename(spec), "specials": specials,
                                  "example": encode([line(7)])[0], "lines": lines, "points": groups})
    json.dump(out, open(f"{folder}/expected.json", "w"), ensure_ascii=True, separators=(",", ":"))


# ---- the other side, through the shared library ----

class Options(ctypes.Structure):
    _fields_ = [("specials", ctypes.c_int), ("end", ctypes.c_int), ("threads", ctypes.c_int)]


class BpeOptions(ctypes.Structure):
    _fields_ = [("vocab", ctypes.c_int32), ("pattern", ctypes.c_char_p)]


class Lockstep:
    """A tokenizer of the library; spec None: learn() makes it."""

    def __init__(self, library, spec):
        self.lib, self.t = ctypes.CDLL(library), ctypes.c_void_p()
        self.lib.ls_errmsg.restype = ctypes.c_char_p
        self.lib.ls_tokens_count.restype = ctypes.c_size_t
        if spec:
            self.check(self.lib.ls_tokenizer_open(spec.encode(), ctypes.byref(self.t)))

    def check(self, status):
        if status < 0:
            raise RuntimeError(self.lib.ls_errmsg().decode())

    def learn(self, data, name, vocab):
        self.lib.ls_tokenizer_close(ctypes.byref(self.t))
        options = BpeOptions(vocab, name.encode())
        self.check(self.lib.ls_tokenizer_train(data, ctypes.c_size_t(len(data)), ctypes.byref(options), ctypes.byref(self.t)))

    def save(self, folder):
        self.check(self.lib.ls_tokenizer_save(self.t, folder.encode()))

    def encode(self, text, specials):
        return self.read(self.tokens(text.encode(), specials))

    def tokens(self, data, specials):
        tokens, options = ctypes.c_void_p(), Options(specials, 0, 0)
        self.check(self.lib.ls_tokenizer_encode(self.t, data, ctypes.c_size_t(len(data)), ctypes.byref(options), ctypes.byref(tokens)))
        return tokens

    def read(self, tokens):
        n = self.lib.ls_tokens_count(tokens)
        ids = (ctypes.c_int32 * max(n, 1))()
        self.check(self.lib.ls_tokens_read(tokens, ctypes.c_size_t(0), ctypes.c_size_t(n), ctypes.c_int32(2**31 - 1), ids))
        self.lib.ls_tokens_close(ctypes.byref(tokens))
        return ids[:n]


def compare(library, folder, lines, files):
    texts = [line(n) for n in range(lines)]
    print(f"generated: {lines} lines, {sum(len(t.encode()) for t in texts) / 1e6:.1f} MB", flush=True)
    for f in files:
        texts += open(f, encoding="utf-8").read().splitlines(True)
    texts += list(point_texts(True))
    print(f"with files and code points: {len(texts)} texts, {sum(len(t.encode()) for t in texts) / 1e6:.1f} MB", flush=True)
    different = 0
    for name, spec, specials, encode in oracles(folder):
        ours, start, bad, tokens = Lockstep(library, spec), time.time(), 0, 0
        for i in range(0, len(texts), 4096):
            for text, ids in zip(texts[i:i + 4096], encode(texts[i:i + 4096])):
                tokens += len(ids)
                if ours.encode(text, specials) != list(ids):
                    bad += 1
                    if bad <= 3:
                        print(f"  {name}: {text[:200]!r}")
        different += bad
        print(f"{name}: {len(texts)} texts, {tokens} tokens, {bad} different, {time.time() - start:.0f} s", flush=True)
    return different


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "write":
        write(sys.argv[2])
    elif len(sys.argv) >= 5 and sys.argv[1] == "compare":
        sys.exit(1 if compare(sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5:]) else 0)
    else:
        sys.exit(__doc__)
