#!/bin/sh
# test_learn.sh LOCKSTEP TESTS - `lockstep learn`: the dialogue as plain lines and on a terminal, the grill, statistics, exports, a kill
# between any two reviews, and what is refused. What the cards say is checked by the tests cards_*.
set -u
lockstep=$1
. "$2/script.sh"
export XDG_DATA_HOME="$PWD/data"

# ---- plain lines: a prediction, input that is not a number, other sizes, a rating ----
printf '15%%\n\ns\nabc\n99\n\n9\n\n' | "$lockstep" learn P-05 --seed 3 >out.txt 2>err.txt || bad "learn: $(cat err.txt)"
grep -q '^== lockstep learn   1 of 1   pipeline   P-05 ==$' out.txt || bad "no title: $(head -3 out.txt)"
grep -q '^> .* holds  *P = ' out.txt || bad "the run is not shown, or its row not marked: $(grep P out.txt | head -3)"
grep -q '^claimed  *yours  *measured$' out.txt || bad "no comparison"
grep -qE '^[0-9.]+ % +15 % +15\.7895 %$' out.txt || bad "no numbers: $(grep '%' out.txt | head -3)"
grep -q '^yours is 5\.0% too low$' out.txt || bad "too low: $(grep yours out.txt)"
grep -q "^'abc' is not a number; type one as 12.5 or 1.2e9, in %$" out.txt || bad "abc is taken"
grep -q "^'9' is not a rating: type a number from 1 to 5$" out.txt || bad "a rating of 9 is taken"
[ "$(grep '^lockstep lab p2 ' out.txt | sort -u | wc -l)" -eq 2 ] || bad "no other sizes: $(grep '^lockstep lab' out.txt)"
grep -q '^== lockstep learn   2 of 2, again   pipeline   P-05 ==$' out.txt || bad "what was not known does not come again"
tail -1 out.txt | grep -q '^1 rating saved$' || bad "the end: $(tail -1 out.txt)"

# ---- due cards: nothing new, then new ones of a topic; answers in words are rated by the four checks ----
"$lockstep" learn --new 0 </dev/null >out.txt || bad "learn --new 0: exit $?"
grep -q '^no card is due, and none is new' out.txt || bad "due: $(cat out.txt)"
printf '\n\n13\n\n' | "$lockstep" learn B-01 >out.txt 2>err.txt || bad "B-01: $(cat err.txt)"
grep -q '^saved B-01: 3; it returns in [0-9]* days*$' out.txt || bad "two of four checks are not 3: $(grep saved out.txt)"
printf '\n\nq\n' | "$lockstep" learn --topic zero --new 2 >out.txt 2>err.txt || bad "--topic: $(cat err.txt)"
grep -q '^== lockstep learn   1 of 2   zero   Z-01 ==$' out.txt || bad "new cards: $(grep == out.txt)"
grep -q '^0 ratings saved$' out.txt || bad "a rating before the end: $(tail -1 out.txt)"

# ---- statistics and exports ----
"$lockstep" learn --stats >stats.txt || bad "--stats: exit $?"
grep -qE '^pipeline +[0-9]+ +1 +0 +1 ' stats.txt && grep -qE '^all +[0-9]+ +2 +0 +2 ' stats.txt || bad "statistics: $(cat stats.txt)"
"$lockstep" learn --export csv --out h.csv >out.txt || bad "--export csv: exit $?"
[ "$(head -1 h.csv)" = "at,card,run,mode,predicted,measured,rating" ] && [ "$(wc -l <h.csv)" -eq 3 ] || bad "history: $(cat h.csv)"
grep -qE '^20[0-9-]{8}T[0-9:]{8}Z,P-05,lab p2 .*,learn,99\.0,[0-9.]+,1$' h.csv || bad "a review: $(cat h.csv)"
env -u HOME -u XDG_DATA_HOME "$lockstep" learn --export anki >out.txt || bad "--export anki: exit $?"
cards=$("$lockstep" learn --stats | awk '$1 == "all" { print $2 }')
[ "$(grep -vc '^#' lockstep-cards.txt)" -eq "$cards" ] || bad "$cards cards, but in Anki's file $(grep -vc '^#' lockstep-cards.txt)"
awk -F '\t' '!/^#/ && NF != 9 { print NF " fields: " $1; bad = 1 } END { exit bad }' lockstep-cards.txt || bad "fields of Anki's file"
"$lockstep" learn --export html --topic pipeline --out p.html >out.txt 2>err.txt || bad "--export html: $(cat err.txt)"
grep -q '<details id="P-05">' p.html && grep -q '<svg' p.html && grep -q 'color-scheme:light dark' p.html || bad "the page lacks something"
sed 's,http://www\.w3\.org/2000/svg,,g' p.html | grep -q 'https\?:' && bad "the page loads: $(grep -o 'https\?:[^"]*' p.html | sort -u)"

# ---- the grill: answers that are right, wrong, not known; answers in words that the reader grades; the remaining cards are not asked ----
{ printf '112\n0.001\n'; printf '\n%.0s' $(seq 24); printf 'q\n'; printf 'y\n%.0s' $(seq 60); } |
    "$lockstep" learn --grill --seed 1 >out.txt 2>err.txt || bad "--grill: $(cat err.txt)"
[ "$(grep -cE '^ *[0-9]+  [A-Z]-[0-9]+  (right|wrong|not known) ' out.txt)" -eq 26 ] || bad "answers: $(grep -E '^ *[0-9]+  ' out.txt)"
grep -qE '^ 2  [A-Z]-[0-9]+  wrong  +yours 0\.001, measured [0-9.]+$' out.txt || bad "the second: $(grep -E '^ 2  ' out.txt)"
[ "$(grep -cE '^ *[0-9]+  .*  not known' out.txt)" -eq 24 ] || bad "not known: $(grep -c 'not known' out.txt)"
right=$(grep -cE '^ *[0-9]+  [A-Z]-[0-9]+  right' out.txt)
grep -q "^score: $right of the first 50 (35 is a pass), $right of all 60 (goal: 40)\$" out.txt || bad "score: $(grep score out.txt)"
grep -qE '^  16 to 35: 0 of 20; ' out.txt && grep -q '^study next: ' out.txt || bad "kinds of knowledge: $(tail -8 out.txt)"
"$lockstep" learn --export csv --out h.csv >out.txt || bad "--export csv: exit $?"
[ "$(grep -c ',grill,' h.csv)" -eq 26 ] || bad "saved reviews of the grill: $(grep -c ',grill,' h.csv)"

# ---- killed after a review, and while a card runs: saved reviews are kept, and no run continues ----
export XDG_DATA_HOME="$PWD/killed"
for n in 1 2 3 4; do
    : >out.txt
    mkfifo pipe.$n
    "$lockstep" learn P-05 <pipe.$n >out.txt 2>err.txt &
    launcher=$!
    exec 3>pipe.$n
    printf '15\n\n4\n' >&3
    wait_until grep -q '^saved' out.txt
    kill -KILL $launcher 2>/dev/null
    wait $launcher 2>/dev/null
    launcher=
    exec 3>&-
    "$lockstep" learn --export csv --out k.csv >/dev/null || bad "the history after a kill: exit $?"
    [ "$(wc -l <k.csv)" -eq $((n + 1)) ] || bad "after $n kills the history has $(($(wc -l <k.csv) - 1)) reviews"
done
mkfifo pipe
"$lockstep" learn M-10 <pipe >out.txt 2>err.txt &
launcher=$!
exec 3>pipe
printf '1\n\n' >&3
sees_run() { run=$(ranks | head -1); [ -n "$run" ]; }
wait_until sees_run
kill -KILL $launcher
wait $launcher 2>/dev/null
launcher=
exec 3>&-
[ -n "$run" ] && wait_until is_gone "$run" || bad "the run of a card outlives 'lockstep learn': ${run:-none was seen}"
find "$TMPDIR" -name 'lockstep-learn*' | grep . && bad "left in TMPDIR"

# ---- on a terminal: a full screen that follows its size ----
if command -v tmux >/dev/null; then
    export XDG_DATA_HOME="$PWD/terminal"
    TMUX_TMPDIR=$work
    export TMUX_TMPDIR
    tm="tmux -L learn -f /dev/null"
    trap '$tm kill-server 2>/dev/null; rm -rf "$work"' EXIT
    # shown WORDS: waits until the screen has them.
    shown() {
        for i in $(seq 3000); do
            $tm capture-pane -p -t t 2>/dev/null | grep -qF -- "$1" && return
            sleep 0.02
        done
        bad "the terminal never showed '$1': $($tm capture-pane -p -t t)"
    }
    # gone WORDS: waits until the screen no longer has them. Escape discards keys that follow it immediately, so keys wait for it.
    gone() {
        for i in $(seq 3000); do
            $tm capture-pane -p -t t | grep -qF -- "$1" || return
            sleep 0.02
        done
        bad "the terminal still shows '$1': $($tm capture-pane -p -t t)"
    }
    $tm new-session -d -s t -x 100 -y 30 "TERM=screen '$lockstep' learn P-05 --seed 3; echo ended; cat"
    shown 'your number [%] (Enter: only think; q: stop):'
    title=$($tm capture-pane -p -t t | head -1)
    [ "$title" = " lockstep learn   1 of 1   pipeline   P-05" ] || bad "title: $title"
    for key in Escape M-x; do
        $tm send-keys -t t 8 8
        shown 'stop): 88'
        $tm send-keys -t t $key
        gone 'stop): 88'
    done
    $tm send-keys -t t 1 9 BSpace 5 Enter
    shown 'Enter: run it; q: stop:'
    shown 'Answer: '
    $tm send-keys -t t Enter
    shown 'how well? 1 (not at all)'
    shown 'yours is 5.0% too low'
    $tm capture-pane -p -t t | grep -qE '^[0-9.]+ % +15 % +[0-9.]+ %$' || bad "numbers: $($tm capture-pane -p -t t)"
    $tm resize-window -t t -x 40 -y 20
    shown '(up: more)'
    $tm send-keys -t t 4 2
    shown '> 42'
    $tm send-keys -t t Escape
    gone '> 42'
    for i in 1 2 3 4; do $tm send-keys -t t PPage; done
    shown 'bubble of a pipeline'
    $tm send-keys -t t 5 Enter
    shown 'saved P-05: 5; it returns in'
    shown '1 rating saved'
    shown 'ended'
    $tm kill-server
    "$lockstep" learn --export csv --out t.csv >/dev/null
    grep -qE ',P-05,.*,15\.0,[0-9.]+,5$' t.csv || bad "typed on a terminal: $(cat t.csv)"
else
    say "skipped: the dialogue on a terminal: tmux is not installed"
fi

# ---- what is refused ----
export XDG_DATA_HOME="$PWD/data"
expect 2 "there is no card 'p-5'; did you mean 'P-05'?" learn p-5
expect 2 "there is no topic 'zer'; there are " learn --topic zer
expect 2 "--export must be anki, html or csv, not 'pdf'" learn --export pdf
expect 2 "use only one of --grill, --stats, --export, --check and CARD" learn --grill --stats
expect 2 "--minutes is the clock of --grill" learn --minutes 5
expect 2 "--check must be first or all, not 'some'" learn --check some
expect 2 "--export csv writes the whole history; leave out --topic" learn --export csv --topic zero
expect 2 "--history must name a file" learn --history ""
expect 2 "--history has no effect" learn --export anki --history h.db
echo "this is not a database, but a text" >no.db
expect 1 "no.db: file is not a database" learn --history no.db --stats
expect 1 "/proc/none: cannot make the folder" learn --history /proc/none/learn.db --stats
expect 1 "none/x.html.tmp: cannot" learn --export html --out none/x.html

[ $failures -eq 0 ] || exit 1
say "cards are asked, run, rated, kept and exported"
