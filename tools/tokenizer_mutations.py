#!/usr/bin/env python3
"""Compares lockstep's reader of tokenizer.json with the `tokenizers` package on files that are wrong in one place.

Usage: tokenizer_mutations.py LOCKSTEP [FOLDER] [--show] [--all]. A node of each *.json tokenizer in FOLDER (default: tests/data/tokenizers)
is deleted or replaced by a value of another type, one at a time (of vocabularies and merges the first, one in the middle and the
last item): 400 of all these files, chosen by a seed, or with --all all of them. Lists the files that lockstep reads and the package
rejects: there should be none; --show lists the opposite too.
Needs: pip install tokenizers. Deterministic; nothing is downloaded.
"""
import glob, json, os, random, subprocess, sys, tempfile
from concurrent.futures import ThreadPoolExecutor
from tokenizers import Tokenizer

VALUES = [56, -1, 1.5, "x", "", True, False, None, [], {}, ["x"], [56], {"x": 1}, 5000000000]
DELETE = object()


def children(node):
    if isinstance(node, dict):
        keys = list(node)
        return [keys[0], keys[len(keys) // 2], keys[-1]] if len(keys) > 40 else keys
    if isinstance(node, list) and node:
        return sorted({0, len(node) // 2, len(node) - 1}) if len(node) > 10 else list(range(len(node)))
    return []


def places(node, path=()):
    for key in children(node):
        yield path + (key,)
        yield from places(node[key], path + (key,))


def put(root, path, value):
    if not path:
        return value
    copy = json.loads(json.dumps(root))
    at = copy
    for key in path[:-1]:
        at = at[key]
    if value is DELETE:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return copy


def mutations(root):
    for value in VALUES:
        yield (), value
    for path in places(root):
        for value in VALUES + [DELETE]:
            at = root
            for key in path:
                at = at[key]
            if value is DELETE or type(value) is not type(at) or value != at:
                yield path, value


def judge(text):
    """None if the package reads it, else its error; in a separate process, since some files make it abort."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            Tokenizer.from_str(text)
            said = "read"
        except BaseException as e:  # a panic of the package is not an Exception
            said = "refused " + str(e).splitlines()[0]
        os.write(write, said.encode()[:4000])
        os._exit(0)
    os.close(write)
    said = os.read(read, 4000).decode()
    os.close(read)
    os.waitpid(child, 0)
    return None if said == "read" else said or "aborts"


def main():
    args = [a for a in sys.argv[1:] if not a.startswith("--")]
    folder = args[1] if len(args) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tests/data/tokenizers")
    work = tempfile.mkdtemp()
    tokens = os.path.join(work, "tokens.bin")
    open(tokens, "wb").write(b"\0\0" * 8)
    counts = {}
    disagree = []

    def ours(case):
        name, root, at, value, number = case
        text = json.dumps(put(root, at, value))
        where, value = "/".join(map(str, at)), "deleted" if value is DELETE else value
        path = os.path.join(work, f"{number}.json")
        open(path, "w").write(text)
        r = subprocess.run([args[0], "data", "inspect", tokens, "--tokens", "0", f"--data.tokenizer={path}"],
                           capture_output=True, text=True)
        os.remove(path)
        if r.returncode not in (0, 1) or (r.returncode == 1 and r.stderr.count("\n") != 1):
            disagree.append(f"BROKEN {name} {where} = {value!r}: exit {r.returncode}: {r.stderr}")
        return name, where, value, r.returncode == 0, r.stderr.strip(), text

    found = []
    for path in sorted(glob.glob(os.path.join(folder, "*.json"))):
        root = json.load(open(path))
        if "model" not in root:
            continue
        found += [(os.path.basename(path), root, at, value) for at, value in mutations(root)]
    if "--all" not in sys.argv:
        found = random.Random(8).sample(found, min(400, len(found)))
    cases = [f + (i,) for i, f in enumerate(found)]
    with ThreadPoolExecutor(2) as pool:
        for name, where, value, accepted, said, text in pool.map(ours, cases):
            theirs = judge(text)
            counts[accepted, theirs is None] = counts.get((accepted, theirs is None), 0) + 1
            if accepted and theirs is not None:
                disagree.append(f"ACCEPTED {name}: {where} = {value!r}: {theirs}")
            if "--show" in sys.argv and not accepted and theirs is None:
                disagree.append(f"REFUSED {name}: {where} = {value!r}: {said}")
    print(*disagree, sep="\n")
    print(f"{len(cases)} mutations: both read {counts.get((True, True), 0)}, both refuse {counts.get((False, False), 0)}, "
          f"lockstep alone refuses {counts.get((False, True), 0)}, lockstep alone reads {counts.get((True, False), 0)}")
    return any(not d.startswith("REFUSED") for d in disagree)


sys.exit(main())
