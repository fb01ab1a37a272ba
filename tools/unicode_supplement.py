#!/usr/bin/env python3
"""Writes src/data/unicode_table.inc: code points whose general category is newer than Unicode 14.0.

usage: unicode_supplement.py > src/data/unicode_table.inc

Unicode 14.0 comes from Python 3.11's unicodedata; the newer side is what the `tokenizers` package's pattern
engine says (0.23: Unicode 16.0, the same as tiktoken 0.14). A category that lost a code point would make the
supplement wrong, so that is checked; Mn lost U+1171E to Mc, hence marks are one category, M.
"""
import unicodedata

from tokenizers import Regex, pre_tokenizers

CATEGORIES = ("Lu Ll Lt Lm Lo M Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp").split()


def ranges(points):
    out = []
    for c in sorted(points):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def main():
    assert unicodedata.unidata_version == "14.0.0", "needs Python 3.11"
    points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    text = "".join(map(chr, points))
    print("/* Written by tools/unicode_supplement.py: general categories, Unicode 16.0 without 14.0. */")
    for name in CATEGORIES:
        split = pre_tokenizers.Split(Regex(r"\p{%s}+" % name), "removed")
        new = set(points) - {ord(c) for part, _ in split.pre_tokenize_str(text) for c in part}
        old = {c for c in points if unicodedata.category(chr(c)).startswith(name)}
        assert not old - new, name
        codes = ["{ 0x%04X, 0x%04X }" % tuple(r) for r in ranges(new - old)]
        if not codes:
            continue
        print('ADDED("%s",' % name)
        for i in range(0, len(codes), 5):
            print("    " + ", ".join(codes[i:i + 5]) + ("," if i + 5 < len(codes) else ")"))


main()
