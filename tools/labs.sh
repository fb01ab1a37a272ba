#!/bin/sh
# labs.sh [BUILD]: runs every lab of BUILD (default: build) and writes docs/claims.md, the table of claims.
# labs.sh check BUILD: checks that every claim of labs/lab_claims.h has its program, every lab its claims, every question, scenario, lab and
#   claim a card of labs/cards.yaml, and that docs/claims.md has the verdicts of the labs' latest runs (BUILD/labs/*.jsonl, which the
#   tests leave there).
set -u
mode=write
[ "${1:-}" = check ] && { mode=check; shift; }
build=$(cd "${1:-$(dirname "$0")/../build}" && pwd) || exit 1
cd "$(dirname "$0")/.." || exit 1
rows=$(mktemp)
trap 'rm -f "$rows"' EXIT
failures=0

bad() { echo "FAILED: $*" >&2; failures=$((failures + 1)); }

# Prints id|program|claim for every claim.
claims() { sed -n 's/^    X("\([^"]*\)", "\([^"]*\)", "\(.*\)") *\\*$/\1|\2|\3/p' labs/lab_claims.h; }

# The rows of stdin in the order of their claims.
in_order() {
    claims >"$rows.order"
    awk -v order="$rows.order" 'BEGIN { while ((getline line < order) > 0) { split(line, f, "|"); at[f[1]] = ++n } }
        { split($0, f, "\t"); print at[f[1]] "\t" $0 }' | sort -s -n -k 1,1 | cut -f 2-
}

# Rows as FIELD<tab>FIELD..: claim, program, what, unit, claimed, expected, measured, why, verdict. A row that begins with spaces continues
# the subject of the row above it.
fields() {
    cat "$@" >"$rows.json"
    for key in claim program what unit relation claimed expected measured why verdict; do
        "$build/json_get" $key <"$rows.json" >"$rows.$key" || bad "rows of a lab cannot be read"
    done
    (cd "$(dirname "$rows")" && name=$(basename "$rows") && paste $name.claim $name.program $name.what $name.unit $name.relation \
        $name.claimed $name.expected $name.measured $name.why $name.verdict) | awk -F '\t' -v OFS='\t' '
    function number(text) { return text == "null" ? "" : text }
    {
        what = $3
        if (what !~ /^ /) { head = what; sub(/:.*/, "", head) }
        else { sub(/^ */, "", what); what = head ": " what }
        relation = $5 == "<" ? "below " : $5 == ">" ? "above " : ""
        claimed = number($6)
        sub(/^why: /, "", $9)
        print $1, $2, what, $4, claimed == "" ? "" : relation claimed, number($7), number($8), $9, $10
    }' | in_order
    rm -f "$rows".*
}

# Prints | id | claim | verdict | what | claimed | measured | command | for every claim, from the rows: the first that is corrected,
# else the first with a claimed number.
table() {
    claims | awk -F '[\t]' -v rows="$rows" '
    function number(text,    word) {
        if (text == "") return "-"
        split(text, word, " ")
        return word[2] == "" ? sprintf("%.6g", word[1]) : word[1] " " sprintf("%.6g", word[2])
    }
    BEGIN {
        while ((getline line < rows) > 0) {
            split(line, f, "\t")
            n[f[1], f[9]]++
            if (f[5] == "" || f[7] == "") continue
            if (f[1] in shown && (f[9] != "corrected" || corrected[f[1]])) continue
            corrected[f[1]] = f[9] == "corrected"
            gsub(/\|/, "\\|", f[3])
            shown[f[1]] = f[3] (f[4] == "" ? "" : " [" f[4] "]") " | " number(f[5]) " | " number(f[7])
        }
    }
    {
        split($0, c, "|")
        v = n[c[1], "does not hold"] ? "**does not hold**" : n[c[1], "corrected"] ? "corrected" : n[c[1], "holds"] ? "holds" : ""
        if (n[c[1], "not measurable here"]) v = v == "" ? "not measurable here" : v "; in part not measurable here"
        example = c[1] in shown ? shown[c[1]] : "- | - | -"
        printf "| %s | %s | %s | %s | `lockstep lab %s` |\n", c[1], c[3], v, example, tolower(c[1])
    }'
}

# The table without the measured numbers, whose last digits may depend on the processor. A build with sanitizers cannot measure all claims.
verdicts() {
    grep '^| [A-Z][0-9]* | .*`lockstep lab ' |
        awk -F ' [|] ' -v part="$in_part" '{ sub(part, "", $3); print $1 " | " $2 " | " $3 " | " $NF }' | sort
}
grep -q '^SANITIZE:[A-Z]*=.' "$build/CMakeCache.txt" && in_part='; in part not measurable here$' || in_part='^$'

# Every question and scenario of labs/questions.txt has a card, and every card is listed there; every claim, and so every lab, has a card,
# and the claims of the cards exist. The test `cards` shows that the commands that they run exist.
check_cards() {
    sed -n 's/^\([A-Z]*-[0-9][0-9]\):$/\1/p' labs/cards.yaml | sort >"$rows.cards"
    sort labs/questions.txt | diff - "$rows.cards" >"$rows.differ" ||
        bad "labs/questions.txt (<) and the cards (>) have different questions: $(cat "$rows.differ")"
    sed -n 's/^  claims: //p' labs/cards.yaml | tr ' ' '\n' | sort -u >"$rows.cards"
    cut -d '|' -f 1 "$rows.claims" | sort -u | diff - "$rows.cards" >"$rows.differ" ||
        bad "labs/lab_claims.h (<) and the cards (>) have different claims: $(cat "$rows.differ")"
    rm -f "$rows.cards" "$rows.differ"
}

check() {
    claims >"$rows.claims"
    [ "$(wc -l <"$rows.claims")" -eq "$(grep -c '^    X(' labs/lab_claims.h)" ] || bad "a row of labs/lab_claims.h cannot be read"
    while IFS='|' read -r id program claim; do
        grep -q "lab_open(.*\"$id\"" "labs/$program.c" || bad "labs/$program.c does not open claim $id"
        "$build/lockstep" lab --json | "$build/json_get" program | grep -qx "$program" || bad "'lockstep lab --json' lacks $program"
    done <"$rows.claims"
    for lab in labs/*.c; do
        name=$(basename "$lab" .c)
        case $name in lab | ten_lines) continue ;; esac
        grep -q "|$name|" "$rows.claims" || bad "$lab has no claim in labs/lab_claims.h"
        [ -s "$build/labs/$name.jsonl" ] || bad "$lab left no rows in $build/labs: run its test first"
    done
    check_cards
    table | verdicts >"$rows.now"
    verdicts <docs/claims.md >"$rows.then"
    diff "$rows.then" "$rows.now" || bad "docs/claims.md differs from the labs' latest results; run tools/labs.sh"
    rm -f "$rows.claims" "$rows.now" "$rows.then"
}

write() {
    processor=$(awk -F ': ' '/^model name/ { name = $2 } /^cpu family/ { family = $2 } /^model\t/ { model = $2 }
                             /^flags/ { print name " (family " family ", model " model ")"; exit }' /proc/cpuinfo)
    cat <<END
# What people claim, measured

Written by \`tools/labs.sh\`, which ran all labs on $(date +%Y-%m-%d), on $(nproc) cores of ${processor:-an unknown processor}.
\`lockstep lab z3\` runs one. Labs assert counts, bytes, their ratios, and what plans say. Transfer times below are bytes divided by a
link's quoted speed.

A claim **holds**; is **corrected** (a different number was derived beforehand, and is measured); is **not measurable here** (nothing is
asserted); or **does not hold** (lockstep is wrong, and the lab fails).

| id | claim | verdict | one of its numbers | claimed | measured | command |
|---|---|---|---|---|---|---|
END
    table
    printf '\n## Corrected\n\n| id | what | claimed | measured | unit | why |\n|---|---|---|---|---|---|\n'
    awk -F '\t' '$9 == "corrected" {
        split($5, c, " "); claimed = c[2] == "" ? sprintf("%.6g", c[1]) : c[1] " " sprintf("%.6g", c[2])
        gsub(/\|/, "\\|"); printf "| %s | %s | %s | %.4g | %s | %s |\n", $1, $3, claimed, $7, $4, $8 }' "$rows"
    printf '\n## Not measurable here\n\n| id | what | why, and what would be needed |\n|---|---|---|\n'
    awk -F '\t' '$9 == "not measurable here" { gsub(/\|/, "\\|"); printf "| %s | %s | %s |\n", $1, $3, $8 }' "$rows"
}

if [ $mode = check ]; then
    fields "$build"/labs/*.jsonl >"$rows"
    check
else
    mkdir -p "$build/labs"
    for lab in labs/*.c; do
        name=$(basename "$lab" .c)
        case $name in lab | ten_lines) continue ;; esac
        LAB_JSON=$build/labs/$name.jsonl "$build/lockstep" lab "$name" >/dev/null || bad "lab $name exits with $?"
    done
    fields "$build"/labs/*.jsonl >"$rows"
    write >docs/claims.md
fi
exit $((failures > 0))
