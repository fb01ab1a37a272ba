#!/bin/sh
# test_json_get.sh LOCKSTEP TESTS - the JSON reader of the test scripts: paths, items of arrays, absent values, input that is not JSON.
lockstep=$1
. "$2/script.sh"

# reads JSON EXPECTED PATH...: lines joined by '|'.
reads() {
    text=$1 expected=$2
    shift 2
    got=$(printf '%s\n' "$text" | json "$@" | tr '\n' '|')
    [ "$got" = "$expected" ] || bad "$* of $text: '$got', not '$expected'"
}

document='{"a":{"b":1,"c":"x y"},"list":[{"n":1},{"n":2,"m":[7,8]},{"n":3}],"empty":[],"real":0.5,"yes":true,"nothing":null}'
reads "$document" '1 x y|' a.b a.c
reads "$document" '1|2|3|' 'list[].n'
reads "$document" 'none none|[7,8] 8|none none|' 'list[].m' 'list[].m[1]'
reads "$document" '2 7 0.5 true null none|' 'list[1].n' 'list[1].m[0]' real yes nothing absent
reads "$document" '' 'empty[].n'
reads "$document" '[{n:1},{n:2,m:[7,8]},{n:3}] {b:1,c:x y}|' list a
reads '{"step":1}
{"step":2}' '1|2|' step
printf '{"a":' | json a >out.txt 2>err.txt && bad "half an object is read"
grep -q 'json_get: line 1' err.txt || bad "half an object: $(cat err.txt)"
json a </dev/null >out.txt 2>err.txt && bad "nothing is read"
printf '%s\n' "$document" | has 'list[].n' 2 || bad "has does not find 2"
printf '%s\n' "$document" | has 'list[].n' 4 && bad "has finds 4"

say "$failures failures"
[ $failures -eq 0 ]
