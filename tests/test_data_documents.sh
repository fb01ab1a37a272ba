#!/bin/sh
# Texts as users have them: spelled-out special tokens, JSON lines, .gz and .zst; the tokens that each becomes, and the messages about
# damaged ones. With data.tokenizer=bytes a token is a byte, and <|endoftext|> is 256.
lockstep=$1
. "$2/script.sh"

# prepared TOKENS DOCUMENTS FILE OPTIONS...: data prepare, and data inspect of what it wrote.
prepared() {
    tokens=$1 documents=$2 file=$3
    shift 3
    rm -rf out
    "$lockstep" data prepare out/t.bin --data.text="$file" "$@" >out.txt 2>&1 || { bad "$file $*: $(cat out.txt)"; return; }
    "$lockstep" data inspect out/t.bin --data.tokenizer=out --json >inspect.txt 2>&1 || bad "inspect $file $*: $(cat inspect.txt)"
    [ "$(json tokens documents <inspect.txt)" = "$tokens $documents" ] ||
        bad "$file $*: not $tokens tokens, $documents documents: $(cat inspect.txt)"
}

# ids OF: the first tokens of the file that was prepared last.
ids() { has first "[$1]" <inspect.txt || bad "not the tokens $1: $(cat inspect.txt)"; }

# refused TEXT FILE OPTIONS...: exit code 1 and one line with TEXT.
refused() {
    text=$1 file=$2
    shift 2
    "$lockstep" data prepare out/r.bin --data.text="$file" "$@" >out.txt 2>err.txt
    code=$?
    [ $code -eq 1 ] || bad "$file $*: exit code $code: $(cat err.txt)"
    [ "$(wc -l <err.txt)" -eq 1 ] || bad "$file $*: not one line: $(cat err.txt)"
    grep -q -- "$text" err.txt || bad "$file $*: '$text' is not in: $(cat err.txt)"
    [ ! -e out/r.bin ] || bad "$file $*: a token file was written"
}

# Plain text: special tokens are parsed, unless an option says otherwise.
printf 'one<|endoftext|>two' >plain.txt
prepared 7 2 plain.txt
ids 111,110,101,256,116,119,111
has 'special_tokens.<|endoftext|>' 1 <inspect.txt || bad "not counted: $(cat inspect.txt)"
prepared 7 2 plain.txt --data.special_tokens=parse
prepared 8 2 plain.txt --end
prepared 19 1 plain.txt --data.special_tokens=text
"$lockstep" data prepare out/t.bin --data.text=plain.txt >/dev/null 2>&1
"$lockstep" data inspect out/t.bin >out.txt 2>&1  # by the tokenizer.json beside it
grep -q "^special     <|endoftext|> (id 256): 1$" out.txt || bad "inspect: $(cat out.txt)"
grep -q "^documents   2$" out.txt || bad "inspect: $(cat out.txt)"

# JSON lines: one document per line, an end token after each; spelled-out special tokens are text. Empty lines and documents, CR LF, no last
# line feed.
printf '{"text":"one"}\n\n{"other":[1,{}],"text":"a<|endoftext|>b"}\r\n{"text":""}\n{"text":"\\u00e9"}' >lines.jsonl
prepared 24 4 lines.jsonl
ids 111,110,101,256,97,60,124,101,110,100,111,102,116,101,120,116
prepared 12 5 lines.jsonl --data.special_tokens=parse
sed 's/"text"/"body"/' lines.jsonl >body.ndjson
prepared 24 4 body.ndjson --data.field=body

# Compressed: the same tokens, also from several members.
prepared 24 4 lines.jsonl
cp out/t.bin whole.bin
gzip -k lines.jsonl
prepared 24 4 lines.jsonl.gz
cmp -s out/t.bin whole.bin || bad "lines.jsonl.gz gives other tokens"
head -c 30 lines.jsonl | gzip >two.jsonl.gz
tail -c +31 lines.jsonl | gzip >>two.jsonl.gz
prepared 24 4 two.jsonl.gz
cmp -s out/t.bin whole.bin || bad "two members give other tokens"
cp "$2/data/lines.jsonl.zst" .
prepared 24 4 lines.jsonl.zst
cmp -s out/t.bin whole.bin || bad "lines.jsonl.zst gives other tokens"
gzip -k text.txt
prepared "$(wc -c <text.txt | tr -d ' ')" 1 text.txt.gz

# Damage and mistakes.
head -c 60 lines.jsonl.gz >cut.jsonl.gz
refused "cut.jsonl.gz: the gzip file is truncated" cut.jsonl.gz
printf 'no gzip at all' >no.txt.gz
refused "no.txt.gz: the gzip file is damaged" no.txt.gz
: >empty.gz
refused "empty.gz: the gzip file is truncated" empty.gz
gzip -c plain.txt | head -c -4 >tail.gz && printf '\1\2\3\4' >>tail.gz
refused "tail.gz: the gzip file is damaged" tail.gz
head -c 40 lines.jsonl.zst >cut.jsonl.zst
refused "cut.jsonl.zst: the zstd file is truncated" cut.jsonl.zst
refused "no.jsonl.zst: the zstd file is damaged" "$(cp no.txt.gz no.jsonl.zst && echo no.jsonl.zst)"
printf '{"text":"a"}\n{"text":"b"\n' >bad.jsonl
refused "bad.jsonl: line 2: not JSON" bad.jsonl
printf '{"text":"a"}\n{"body":"b"}\n' >bad.jsonl
refused "bad.jsonl: line 2: no field 'text': name the field that holds the text with --data.field" bad.jsonl
printf '{"text":"a"}\n\n{"text":56}\n' >bad.jsonl
refused "bad.jsonl: line 3: field 'text' is not a string" bad.jsonl
printf '"a"\n' >bad.jsonl
refused "bad.jsonl: line 1: not a JSON object" bad.jsonl
printf '\n\n' >bad.jsonl
refused "bad.jsonl: the text is empty" bad.jsonl
printf 'a\377b' >bad.txt
refused "bad.txt: .*at offset 1" bad.txt
gzip -k bad.txt
refused "bad.txt.gz: .*at offset 1" bad.txt.gz

# Training: bytes, and a tokenizer that is learned from documents; it never learns merges in <|endoftext|>.
i=0
while [ $i -lt 300 ]; do echo "{\"text\":\"Document $i says $((i * 7 % 13)) things.\"}"; i=$((i + 1)); done | gzip >train.jsonl.gz
small="--model.layers=1 --model.width=16 --model.heads=2 --data.seq_len=16 --train.global_batch=2 --train.steps=2 --precision.compute=fp32"
"$lockstep" train --data.text=train.jsonl.gz --run.dir=bytes $small >out.txt 2>&1 || bad "train: $(cat out.txt)"
"$lockstep" train --data.text=train.jsonl.gz --data.tokenizer=bpe --data.vocab_size=300 --run.dir=bpe $small >out.txt 2>&1 ||
    bad "train, bpe: $(cat out.txt)"
"$lockstep" train --data.text=train.jsonl.gz --data.tokenizer=bpe --data.vocab_size=300 --run.dir=bpe $small --train.steps=3 >out.txt \
    2>&1 || bad "resumed, bpe: $(cat out.txt)"
grep -q "from bpe/checkpoints/step_00000002" out.txt || bad "not resumed: $(cat out.txt)"
i=0
while [ $i -lt 50 ]; do printf 'abc abd<|endoftext|>'; i=$((i + 1)); done >many.txt
"$lockstep" data prepare learned/t.bin --data.text=many.txt --data.tokenizer=bpe --data.vocab_size=400 >out.txt 2>&1 ||
    bad "learned: $(cat out.txt)"
grep -q '"endoftext"' learned/tokenizer.json && bad "merges in <|endoftext|> were learned"

# Options without effect are refused.
"$lockstep" data prepare out/r.bin --data.text=plain.txt --data.field=body >out.txt 2>&1; [ $? -eq 2 ] ||
    bad "data.field of a plain text: $(cat out.txt)"

say "$failures failures"
[ $failures -eq 0 ]
