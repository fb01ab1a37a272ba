#!/bin/sh
# test_learn.sh LOCKSTEP TESTS - `lockstep learn`: the dialogue as plain lines and on a terminal, the grill, statistics, exports, a kill
# between any two reviews, and what is refused. What the cards say is checked by the tests cards_*.
set -u
lockstep=$1
. "$2/script.sh"
export XDG_DATA_HOME="$PWD/data"

# ---- plain lines: a prediction, what is no number, other sizes, a rating ----
printf '15%%\ns\nabc\n30\n9\n\n' | "$lockstep" learn P-05 --seed 3 >out.txt 2>err.txt || bad "learn: $(cat err.txt)"
grep -q '^== lockstep learn   1 of 1   pipeline   P-05 ==$' out.txt || bad "no title: $(head -3 out.txt)"
grep -q '^> .* holds  *P = ' out.txt || bad "the run is not shown, or its row not marked: $(grep P out.txt | head -3)"
grep -q '^claimed  *yours  *measured$' out.txt || bad "no comparison"
grep -qE '^[0-9.]+ % +15 % +[0-9.]+ %$' out.txt || bad "no numbers: $(grep '%' out.txt | head -3)"
grep -q "^'abc' is not a number; type one as 12.5 or 1.2e9, in %$" out.txt || bad "abc is taken"
grep -q "^'9' is no rating: type a number from 1 to 5$" out.txt || bad "a rating of 9 is taken"
[ "$(grep -c '^noted P-05: 1; it returns in 1 day$' out.txt)" -eq 1 ] || bad "not noted once: $(grep noted out.txt)"
[ "$(grep -c '^lockstep lab p2 ' out.txt)" -ge 2 ] || bad "no other sizes"
tail -1 out.txt | grep -q '^1 card rated$' || bad "the end: $(tail -1 out.txt)"

# ---- what is due: nothing new, then new ones of a topic; words are rated by the four checks ----
"$lockstep" learn --new 0 </dev/null >out.txt || bad "learn --new 0: exit $?"
grep -q '^no card is due; --new=N takes N new ones' out.txt || bad "due: $(cat out.txt)"
printf '\n13\n\n' | "$lockstep" learn B-04 >out.txt 2>err.txt || bad "B-04: $(cat err.txt)"
grep -q '^noted B-04: 3;' out.txt || bad "two of four checks are not 3: $(grep noted out.txt)"

# ---- statistics and exports ----
"$lockstep" learn --stats >stats.txt || bad "--stats: exit $?"
grep -qE '^pipeline +[0-9]+ +1 +0 +1 ' stats.txt && grep -qE '^all +[0-9]+ +2 +0 +2 ' stats.txt || bad "statistics: $(cat stats.txt)"
"$lockstep" learn --export csv --out h.csv >out.txt || bad "--export csv: exit $?"
[ "$(head -1 h.csv)" = "at,card,run,mode,predicted,measured,rating" ] && [ "$(wc -l <h.csv)" -eq 3 ] || bad "history: $(cat h.csv)"
grep -qE '^20[0-9-]{8}T[0-9:]{8}Z,P-05,lab p2 .*,learn,30\.0,[0-9.]+,1$' h.csv || bad "a review: $(cat h.csv)"
"$lockstep" learn --export anki >out.txt || bad "--export anki: exit $?"
cards=$("$lockstep" learn --stats | awk '$1 == "all" { print $2 }')
[ "$(grep -vc '^#' lockstep-cards.txt)" -eq "$cards" ] || bad "$cards cards, but in Anki's file $(grep -vc '^#' lockstep-cards.txt)"
awk -F '\t' '!/^#/ && NF != 9 { print NF " fields: " $1; bad = 1 } END { exit bad }' lockstep-cards.txt || bad "fields of Anki's file"
"$lockstep" learn --export html --topic pipeline --out p.html >out.txt 2>err.txt || bad "--export html: $(cat err.txt)"
grep -q '<details id="P-05">' p.html && grep -q '<svg' p.html && grep -q 'prefers\|color-scheme:light dark' p.html || bad "the page"
grep -q 'https\?://[^w]' p.html && bad "the page loads something: $(grep -o 'https\?://[^"]*' p.html | head -2)"

# ---- the grill: all answered with Enter; one right ----
{ printf '\n%.0s' $(seq 26); printf 'q\n'; } | "$lockstep" learn --grill --seed 1 >out.txt 2>err.txt || bad "--grill: $(cat err.txt)"
grep -q '^score: 0 of the first 50 (35: enough drill), 0 of all 60 (40: the goal, cold)$' out.txt || bad "score: $(grep score out.txt)"
grep -q '^  16 to 35: 0 of 20; ' out.txt && grep -q '^study next: ' out.txt || bad "kinds of knowledge: $(tail -8 out.txt)"

# ---- killed between any two reviews: what was noted is there ----
export XDG_DATA_HOME="$PWD/killed"
for n in 1 2 3 4; do
    : >out.txt
    mkfifo pipe.$n
    "$lockstep" learn P-05 <pipe.$n >out.txt 2>err.txt &
    launcher=$!
    exec 3>pipe.$n
    printf '15\n4\n' >&3
    for i in $(seq 1000); do grep -q '^noted' out.txt && break; sleep 0.02; done
    kill -KILL $launcher 2>/dev/null
    wait $launcher 2>/dev/null
    launcher=
    exec 3>&-
    "$lockstep" learn --export csv --out k.csv >/dev/null || bad "the history after a kill: exit $?"
    [ "$(wc -l <k.csv)" -eq $((n + 1)) ] || bad "after $n kills the history has $(($(wc -l <k.csv) - 1)) reviews"
done

# ---- on a terminal: a full screen that follows its size ----
if command -v tmux >/dev/null; then
    export XDG_DATA_HOME="$PWD/terminal"
    tm="tmux -L learn-$$ -f /dev/null"
    # shown WORDS: waits until the screen has them.
    shown() {
        for i in $(seq 1000); do
            $tm capture-pane -p -t t 2>/dev/null | grep -qF -- "$1" && return
            sleep 0.02
        done
        bad "the terminal never showed '$1': $($tm capture-pane -p -t t)"
    }
    $tm new-session -d -s t -x 100 -y 30 "TERM=screen '$lockstep' learn P-05 --seed 3; echo ended; cat"
    shown 'your number [%] (Enter: only think; q: stop):'
    title=$($tm capture-pane -p -t t | head -1)
    [ "$title" = " lockstep learn   1 of 1   pipeline   P-05" ] || bad "title: $title"
    $tm send-keys -t t 1 9 BSpace 5 Enter
    shown 'how well? 1 (not at all)'
    shown 'yours is off by'
    $tm capture-pane -p -t t | grep -qE '^[0-9.]+ % +15 % +[0-9.]+ %$' || bad "numbers: $($tm capture-pane -p -t t)"
    $tm resize-window -t t -x 60 -y 20
    shown '(up: more)'
    $tm send-keys -t t PPage
    $tm send-keys -t t PPage
    shown 'bubble of a pipeline'
    $tm send-keys -t t 5 Enter
    shown '1 card rated'
    shown 'ended'
    $tm kill-server
    "$lockstep" learn --export csv --out t.csv >/dev/null
    grep -qE ',P-05,.*,15\.0,[0-9.]+,5$' t.csv || bad "typed on a terminal: $(cat t.csv)"
else
    say "skipped: the dialogue on a terminal: tmux is not installed"
fi

# ---- what is refused ----
expect 2 "there is no card 'p-5'; cards are P-05, Z-04 and the like" learn p-5
expect 2 "there is no topic 'zer'; there are " learn --topic zer
expect 2 "--export must be anki, html or csv, not 'pdf'" learn --export pdf
expect 2 "--grill, --stats, --export, --check and a card exclude each other" learn --grill --stats
expect 2 "--minutes is the clock of --grill" learn --minutes 5
expect 2 "--check must be first or all, not 'some'" learn --check some
echo "this is not a database, but a text" >no.db
expect 1 "no.db: file is not a database" learn --history no.db --stats
expect 1 "/proc/none: cannot make the folder" learn --history /proc/none/learn.db --stats

[ $failures -eq 0 ] || exit 1
say "cards are asked, run, rated, kept and exported"
