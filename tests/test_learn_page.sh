#!/bin/sh
# test_learn_page.sh LOCKSTEP TESTS - the page of `learn --export html` in a headless browser, light and dark, 400 and 1000 pixels wide:
# nothing is wider than the window, every card opens, pictures have a size, text has contrast and is large enough, and nothing is loaded.
# Each of these is broken in a copy, which must be reported.
# By default two cards and all pictures; LOCKSTEP_MATRIX=full: all cards, which takes minutes. LOCKSTEP_BROWSER: the browser to use.
set -u
lockstep=$1
tests=$(cd "$2" && pwd)
. "$2/script.sh"

browser=
for name in ${LOCKSTEP_BROWSER:-chromium chromium-browser google-chrome google-chrome-stable}; do
    command -v "$name" >/dev/null && { browser=$name; break; }
done
[ -n "$browser" ] || { say "skipped: no browser was found; this test needs chromium or google-chrome"; exit 77; }

# browse SCHEME FILE: the page's DOM after its scripts have run. SCHEME: 0 dark, 1 light. Time in the page is virtual, without DNS.
browse() {
    HOME=$work timeout 300 "$browser" --headless --no-sandbox --disable-gpu --no-first-run --hide-scrollbars \
        --user-data-dir="$work/browser" --host-resolver-rules='MAP * ~NOTFOUND' --blink-settings=preferredColorScheme="$1" \
        --window-size=1100,900 --virtual-time-budget=60000 --dump-dom "file://$work/$2" 2>browser.txt
}

printf '<!DOCTYPE html><p id="started">' >empty.html
browse 1 empty.html | grep -q 'id="started"' || { say "skipped: $browser does not start here: $(tail -n 1 browser.txt)"; exit 77; }

topic="--topic utilization"
[ "${LOCKSTEP_MATRIX:-}" = full ] && topic=
"$lockstep" learn --export html $topic --out page.html >out.txt 2>err.txt || bad "--export html: $(cat err.txt)"
cards=$(grep -c '<details id=' page.html)
[ "$cards" -ge 2 ] && [ "$(grep -c '</body></html>' page.html)" -eq 1 ] || bad "the page has $cards cards"

# ---- a page of frames: the page at two widths, and copies with one defect each ----
frames=
# frame NAME WIDTH HTML: NAME.html is the page with HTML before its end; a frame WIDTH pixels wide shows it.
frame() {
    { sed '$d' page.html; printf '%s\n<script>' "$3"; cat "$tests/learn_page.js"; printf '</script></body></html>\n'; } >"$1.html"
    frames="$frames<iframe name=\"$1\" src=\"$1.html\" style=\"width:$2px;height:800px;border:0\"></iframe>"
}
[ "$(tail -n 1 page.html)" = "</body></html>" ] || bad "the last line of the page: $(tail -n 1 page.html)"
frame phone 400 ''
frame desktop 1000 ''
frame wide 400 '<div style="width:2000px">a wide line</div>'
frame card 400 '<style>dl{width:500px}</style>'
frame contrast 400 '<p style="color:#888;background:#999">gray on gray</p>'
frame shut 400 '<style>dl{display:none}</style>'
frame size 400 '<style>figure svg{width:0!important;min-width:0!important}</style>'
frame small 400 '<style>figure svg{width:240px!important;min-width:0!important}</style>'
frame outside 400 '<img alt="" src="http://lockstep.invalid/picture.png">'
frame one_scheme 400 '<style>:root{color-scheme:light!important}</style>'
cat >frames.html <<END
<!DOCTYPE html><html><head><meta charset="utf-8"><style>:root{color-scheme:light dark}</style></head><body><pre id="found"></pre><script>
addEventListener('message', function (m) { document.getElementById('found').append('\n' + m.data); });
</script>$frames</body></html>
END

# said FRAME WHAT: what the frame reports about it, one item per line.
said() { sed -n "s,</pre>.*,,; s/^$1 $2 //p" "$scheme.txt"; }

for scheme in dark light; do
    browse "$([ $scheme = light ] && echo 1 || echo 0)" frames.html >$scheme.txt
    for page in phone desktop; do
        width=$([ $page = phone ] && echo 400 || echo 1000)
        if [ "$(said $page width)" != "$width" ]; then
            bad "$scheme, $page: $(said $page width) pixels wide: $(tail -n 1 browser.txt)"
            continue
        fi
        [ "$(said $page cards)" = "$cards" ] || bad "$scheme, $page: $(said $page cards) cards of $cards"
        [ "$(said $page pictures)" = 6 ] || bad "$scheme, $page: $(said $page pictures) pictures of 6"
        [ "$(said $page texts)" -gt 400 ] || bad "$scheme, $page: only $(said $page texts) texts"
        wrong=$(said $page wrong)
        [ -z "$wrong" ] || bad "$scheme, $page: $(say "$wrong" | wc -l) things are wrong: $(say "$wrong" | head -n 8)"
        say "$scheme, $width pixels: $(said $page texts) texts, lowest contrast $(said $page lowest), background $(said $page background)"
    done
    for broken in wide card contrast shut size small outside; do
        said $broken wrong | grep -q "^$broken: " || bad "$scheme: the copy where '$broken' is broken is not reported"
    done
done
for page in phone desktop one_scheme; do
    dark=$(sed -n "s,</pre>.*,,; s/^$page background //p" dark.txt)
    light=$(sed -n "s,</pre>.*,,; s/^$page background //p" light.txt)
    case $page in
        one_scheme) [ "$dark" = "$light" ] || bad "a page without a dark scheme has the backgrounds $dark and $light" ;;
        *) [ -n "$dark" ] && [ "$dark" != "$light" ] || bad "$page: dark has the background of light: $dark" ;;
    esac
done

[ $failures -eq 0 ] || exit 1
say "the exported page opens, fits and is legible, light and dark; every broken copy is reported"
