# declarations.awk - finds variables that are declared without a value although the next statement of the same block that names them gives
# them one: they are declared there instead. Variables that a call, a branch or a loop sets first stay where they are.
#
#     awk -f tools/declarations.awk FILE...       prints FILE:LINE for each, and fails if there is one
function bare(line)  # without texts, comments and members of structs
{
    gsub(/"([^"\\]|\\.)*"/, "\"\"", line); gsub(/'([^'\\]|\\.)'/, "''", line)
    gsub(/\/\*([^*]|\*[^\/])*(\*\/|$)/, "", line); gsub(/(\.|->)[A-Za-z_][A-Za-z0-9_]*/, ".m", line)
    return line
}
function names(line, name) { return line ~ ("(^|[^A-Za-z0-9_])" name "($|[^A-Za-z0-9_])") }
function indent_of(line) { match(line, /^ */); return RLENGTH }
# The declarators of a declaration into one[]; commas in brackets do not divide. Returns how many.
function divide(text,    n, depth, i, c)
{
    n = 1; one[1] = ""; depth = 0
    for (i = 1; i <= length(text); i++) {
        c = substr(text, i, 1)
        if (c ~ /[({[]/) depth++
        if (c ~ /[)}\]]/) depth--
        if (c == "," && depth == 0) one[++n] = ""
        else one[n] = one[n] c
    }
    return n
}
function look(i, name,    j, at, line)  # the first statement after line i that names it assigns to it, in the same block
{
    at = indent_of(text[i])
    for (j = i + 1; j <= lines && j < i + 200; j++) {
        if (text[j] != "" && indent_of(text[j]) < at) return 0
        if (text[j] ~ /^ *#/) return 0
        line = bare(text[j])
        if (!names(line, name)) continue
        if (indent_of(text[j]) != at || substr(line, at + 1, length(name) + 3) != name " = ") return 0
        if (names(substr(line, at + length(name) + 4), name)) return 0
        if (bare(text[j - 1]) ~ /[:)]$|else$|do$/) return 0  # the statement of a label, an if or a loop
        return divide(line) == 1
    }
    return 0
}
function check(    i, k, n, line, name)
{
    for (i = 1; i <= lines; i++) {
        line = text[i]; sub(/ *\/\*.*\*\/$/, "", line)
        if (line ~ /^ *(return|goto|else|typedef|case|break|continue|extern|static|do|default)[^A-Za-z0-9_]/) continue
        if (!sub(type, "", line) || line !~ /^\**[A-Za-z_].*;$/) continue
        sub(/;$/, "", line)
        n = divide(line)
        for (k = 1; k <= n; k++) {
            name = one[k]; gsub(/^[ *]+/, "", name)
            if (name !~ /^[A-Za-z_][A-Za-z0-9_]*$/ || named_by_others(name, k, n)) continue
            if (look(i, name)) { print file ":" i ": " name " is declared before it has a value; declare it where it gets one"; bad = 1 }
            n = divide(line)
        }
    }
}
function named_by_others(name, k, n,    m)
{
    for (m = 1; m <= n; m++) if (m != k && names(one[m], name)) return 1
    return 0
}
BEGIN { type = "^ +((const|unsigned|signed|struct|enum|long|short|volatile) )*[A-Za-z_][A-Za-z0-9_]*( const)? " }
FNR == 1 && NR > 1 { check() }
FNR == 1 { lines = 0; file = FILENAME }
{ text[++lines] = $0 }
END { check(); exit bad }
