#!/bin/sh
# format.sh check|fix - checks that src/ and include/ are formatted by .clang-format, or formats them. Versions of clang-format other than
# Debian 12's format some lines differently, so the check is skipped with them. Variables are declared where they get their first value
# (declarations.awk), in tests, labs and benches too.
set -u
cd "$(dirname "$0")/.." || exit 1
want=14

if [ "$1" = check ]; then
    find src include tests labs bench -name '*.[ch]' -o -name '*.cu' -o -name '*.cc' | sort | xargs awk -f tools/declarations.awk || exit 1
fi
version=$(clang-format --version 2>/dev/null | sed 's/.*version \([0-9]*\).*/\1/')
if [ "$version" != "$want" ]; then
    echo "format: not checked: clang-format $want is expected, found ${version:-none}; 'make format' installs it on Debian 12"
    [ "$1" = check ]
    exit
fi
files() { find src include '(' -name '*.[ch]' -o -name '*.cu' ')' -print0; }
case $1 in
fix) files | xargs -0 clang-format -i ;;
check)
    if differ=$(files | xargs -0 -P 2 -n 40 clang-format --dry-run -Werror 2>&1); then
        echo "format: src and include are formatted"
    else
        printf '%s\n' "$differ" | grep ': error: code should be clang-formatted' | sed 's/: error.*//'
        echo "format: 'make format' formats these lines"
        exit 1
    fi ;;
*) echo "format: '$1' is neither check nor fix" >&2; exit 2 ;;
esac
