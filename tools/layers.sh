#!/bin/sh
# layers.sh [objects BUILD [FOLDER]] - the layer check.
#
# Includes: a file of src or include/lockstep includes headers of its own layer or a lower one, and none of a folder that `apart` keeps from
# its own; a header of src is private to its folder unless `offered` below names it; a vendor's header is included in one named file; no
# include has a .. in it. What no include shows: a .c or .cu file of src has no `extern`, and declares no function of another one.
# Names: no file outside of src/models names a model family; the family's row has its properties. No file of src/train and src/cli outside
# of src/train/task names a task (TASK_MAP of task.h), as a part of a name between underscores; the task's row has its properties. Outside
# of kernels and injected faults an op's name is an argument of a function in `appends` or the value of a field `op`, and nothing else: no
# code compares an op with a name or has a table of some ops; its row has its properties. Outside of src/train/faults no code sets a pointer
# to an injected fault. No name of a static function or variable of a file (not those that macros make) is used in more than three files,
# and no struct tag is defined in more than three files of src and include. Every file that a comment names exists.
# Form: no line of code, scripts, tests or text is longer than 140 columns, except rows of tables; files of tests have fewer than 500 lines.
#
# With `objects` it reads the symbols of the objects in the build folder instead, of the sources in FOLDER (by default this tree): none of a
# folder of src needs a symbol that only higher layers, or folders that `apart` keeps from it, have.
export LC_ALL=C # every awk reads bytes
floors='base 0 device 1 tensor 2 kernels 2 comm 2 ir 3 passes 3 runtime 3 models 4 optim 4 data 4
    parallel 5 checkpoint 5 plan 5 train 6 learn 6 cli 7'
apart='comm tensor comm kernels' # pairs of one floor: the first uses nothing of the second
if [ "$1" = objects ]; then
    # An object whose source is gone is a leftover of an earlier build.
    find "$2" -path '*.dir/src/*.o' -o -path '*.dir/cuda/together_*.o' | sort | while read -r object; do
        source=src/${object##*.dir/src/}
        case $object in
        */together_*) echo "$object" ;;
        *) [ -f "${3:-$(dirname "$0")/..}/${source%.o}" ] && echo "$object" ;;
        esac
    done | xargs -r nm -A -P -g | awk -v floors="$floors" -v apart="$apart" '
    function folder_of(path) {
        if (path ~ /[.]dir\/cuda\/together_/) return "kernels"
        sub(/.*[.]dir\/src\//, "", path); sub(/\/.*/, "", path); return path
    }
    function takes(user, owner) { return floor[owner] <= floor[user] && !((user, owner) in is_apart) }
    BEGIN {
        n = split(floors, w, " "); for (i = 1; i < n; i += 2) floor[w[i]] = w[i + 1]
        n = split(apart, w, " "); for (i = 1; i < n; i += 2) is_apart[w[i], w[i + 1]] = 1
    }
    {
        object = $1; sub(/:$/, "", object); folder = folder_of(object)
        if (!(folder in floor)) { print object ": folder " folder " has no layer"; bad = 1; next }
        if ($3 ~ /^[Uwv]$/) { needed[object, $2] = 1; next }
        if (!((folder, $2) in owns)) { owns[folder, $2] = 1; owners[$2] = owners[$2] " " folder }
        defined++
    }
    END {
        for (pair in needed) {
            split(pair, part, SUBSEP); user = folder_of(part[1]); n = split(owners[part[2]], owner, " ")
            for (i = 1; i <= n && !takes(user, owner[i]); i++) continue
            if (n && i > n) { print part[1] ": " user " needs " part[2] ", which only" owners[part[2]] " has"; bad = 1 }
        }
        if (!defined) { print "no objects of src"; bad = 1 }
        if (!bad) print "layers: " defined " symbols of objects point down"
        exit bad
    }'
    exit
fi
cd "$(dirname "$0")/.." || exit 1
bad=0
{ find src include labs tests bench tools -name '*.[ch]' -o -name '*.cu' -o -name '*.cc' -o -name '*.sh' -o -name '*.py' \
    -o -name '*.awk' -o -name '*.js'
  ls CMakeLists.txt Makefile README.md ARCHITECTURE.md docs/benchmarks.md docs/claims.md docs/planner.md; } | sort | xargs awk '
    { line = $0; gsub(/[\200-\277]/, "", line) }  # one column a character
    FILENAME ~ /[.]md$/ && (/^[|]/ || /^!\[/) { next }  # a row of a table and a picture are a line each
    length(line) > 140 { print FILENAME ":" FNR ": " length(line) " columns; 140 are the limit"; bad = 1 }
    FNR == 500 && FILENAME ~ /^tests/ { print FILENAME ": 500 lines or more; split it by subject"; bad = 1 }
    END { exit bad }' || bad=1
# File names in comments and in ARCHITECTURE.md are those of files that exist; a * stands for any characters, NAME for any name.
names=$(mktemp) && find src include labs tests bench tools docs -type f >"$names" || exit 1
{ grep -E '\.([ch]|cu|cc|sh|py)$' "$names"; echo ARCHITECTURE.md; } |
    grep -v '^docs/' | xargs awk -v names="$names" '
function exists(name,    pattern, path) {
    sub(/^(\.\.?\/)+/, "", name)
    if (name ~ /NAME|PROGRAM/ || name in known) return 1
    if (name !~ /\*/) return 0
    pattern = name; gsub(/\./, "[.]", pattern); gsub(/\*/, "[^/]*", pattern)
    for (path in file) if (path ~ "(^|/)" pattern "$") return known[name] = 1
    return 0
}
function check_names(text,    name) {
    gsub(/\$[A-Za-z0-9_]+\//, "", text)
    while (match(text, /[A-Za-z0-9_*\/.-]*[A-Za-z0-9_*]\.(cu|cc|c|h|sh|py)($|[^A-Za-z0-9_])/)) {
        name = substr(text, RSTART, RLENGTH); text = substr(text, RSTART + RLENGTH); sub(/[^A-Za-z0-9_]$/, "", name)
        if (!exists(name)) { print FILENAME ":" FNR ": there is no file " name; bad = 1 }
    }
}
BEGIN {
    while ((getline path < names) > 0) { file[path] = 1; do known[path] = 1; while (sub(/^[^\/]*\//, "", path)) }
    n = split("llm.c mpi.h nccl.h cuda_runtime.h cuda_runtime_api.h cublasLt.h cudnn.h " \
              "tensorboard/backend/event_processing/event_accumulator.py run.sh FOLDER/run.sh", w, " ")
    for (i = 1; i <= n; i++) known[w[i]] = 1  # of other projects; of the GPU bundle
}
FNR == 1 { inside = 0 }
FILENAME ~ /\.md$/ { check_names($0); next }
FILENAME ~ /\.(sh|py)$/ { line = $0; if (sub(/^([^#]*[ \t])?#/, "", line)) check_names(line); next }
{
    for (line = $0; line != "";) {
        if (inside) {
            end = index(line, "*/")
            if (!end) { check_names(line); break }
            check_names(substr(line, 1, end - 1)); line = substr(line, end + 2); inside = 0
        } else {
            gsub(/"([^"\\]|\\.)*"/, "", line)
            start = index(line, "/*"); slash = index(line, "//")
            if (slash && (!start || slash < start)) { check_names(substr(line, slash + 2)); break }
            if (!start) break
            line = substr(line, start + 2); inside = 1
        }
    }
}
END { exit bad }' || bad=1
rm -f "$names"
find src include labs tests bench -name '*.[ch]' -o -name '*.cu' -o -name '*.cc' -o -name '*.inc' | sort |
    xargs awk -v floors="$floors" -v apart="$apart" -v bad=$bad '
# ---- reading C ----

# line without comments; strings are "" and characters 0.
function code_of(line,    out, found) {
    if (in_comment) {
        if (!(found = index(line, "*/"))) return ""
        in_comment = 0; line = substr(line, found + 2)
    }
    if (line !~ /["\047\/]/) return line
    gsub(/\\./, "", line)
    while (match(line, /"[^"]*"|\047[^\047]*\047|\/\*|\/\//)) {
        found = substr(line, RSTART, 2); out = out substr(line, 1, RSTART - 1)
        if (found == "//") return out
        line = substr(line, RSTART + RLENGTH)
        if (found != "/*") out = out (found ~ /^"/ ? "\"\"" : "0")
        else {
            out = out " "
            if (!(found = index(line, "*/"))) { in_comment = 1; return out }
            line = substr(line, found + 2)
        }
    }
    return out line
}
# A declaration with #: parentheses with all in them; @: the end of a parenthesized declarator, (*name); without attributes and indices.
function collapsed(text,    inner, mark) {
    while (sub(/\[[^][]*\]/, " ", text)) continue
    while (match(text, /\([^()]*\)/)) {
        inner = substr(text, RSTART + 1, RLENGTH - 2); mark = "#"
        if (inner ~ /^[ \t]*[*][ \t*]*(const |restrict )*[A-Za-z_][A-Za-z0-9_]*[#@]*[ \t]*$/) {
            sub(/^[ \t*]+/, " ", inner); mark = inner "@"
        }
        text = substr(text, 1, RSTART - 1) mark substr(text, RSTART + RLENGTH)
    }
    gsub(/(__attribute__|__launch_bounds__|_Alignas|alignas|__align__|__asm__|asm)[ \t]*#/, " ", text)
    gsub(/(__typeof__|typeof|decltype)[ \t]*#/, " int ", text)
    return text
}
function is_function(text) {
    text = collapsed(text)
    if (text ~ /=/) return 0
    sub(/[ \t]+$/, "", text)
    return text ~ /[#@]$/ || (text ~ /[#@]/ && text ~ /[#@ ](const|noexcept|[A-Z_0-9]+)$/)
}
# The name that a declarator declares: before its parameters, or the last word before its value.
function name_of(text) {
    sub(/=.*/, "", text)
    if (match(text, /[#@]/)) {
        if (text ~ /^[^#@]*[^A-Za-z0-9_][A-Z_][A-Z_0-9]*[ \t]*#[ \t]*[A-Za-z_][A-Za-z_0-9]*[ \t]*[#@]/) {
            sub(/[A-Z_][A-Z_0-9]*[ \t]*#/, " ", text); match(text, /[#@]/)  # a macro before the name
        }
        text = substr(text, 1, RSTART - 1)
    }
    gsub(/[ \t]+$/, "", text); sub(/.*[^A-Za-z0-9_]/, "", text)
    return text
}
# A declaration of the file, of which line top_line is the first. body: it is a function with its body.
function declare(text, body,    part, n, i, name) {
    gsub(/[ \t]+/, " ", text)
    while (sub(/\[[^][]*\]/, " ", text)) continue
    while (sub(/<[^<>=;(){}]*>/, " ", text)) continue
    if (text !~ /(^|[^A-Za-z0-9_])static([^A-Za-z0-9_]|$)/) {
        if (FILENAME !~ /^src\/.*[.](c|cu)$/ || text ~ /(^| )typedef /) return
        text = collapsed(text); gsub(/""/, "", text)
        if (text !~ /=/ && text ~ /[A-Za-z0-9_] [ *]*[A-Za-z_][A-Za-z0-9_]*#/) {
            name = name_of(text)
            if (body) { owner[name] = FILENAME; has_body[name, FILENAME] = 1 }
            else prototype[FILENAME ":" top_line] = name
        }
        return
    }
    text = collapsed(text)
    n = body ? split(text, part, "{") : split(text, part, ",")
    for (i = 1; i <= (body ? 1 : n); i++) {
        name = name_of(part[i]); statics++
        if (name == "" || (name, FILENAME) in defined) continue
        defined[name, FILENAME] = 1; definitions[name]++; places[name] = places[name] " " FILENAME ":" top_line
    }
}
# Finds the declarations of the file in its code, line by line.
function read_declarations(code,    mark) {
    while (code != "") {
        if (!match(code, depth ? "[{}]" : "[;{}]")) {
            if (!depth && code ~ /[^ \t]/) { if (top == "") top_line = FNR; top = top " " code }
            return
        }
        mark = substr(code, RSTART, 1)
        if (!depth && (RSTART > 1)) { if (top == "") top_line = FNR; top = top " " substr(code, 1, RSTART - 1) }
        code = substr(code, RSTART + 1)
        if (!depth && mark == ";") { declare(top, 0); top = "" }
        else if (!depth && mark == "{") {
            if (top ~ /^[ \t]*(extern ""|namespace[^=;(]*)[ \t]*$/) { top = ""; linkage++ }
            else { depth = 1; body = is_function(top) }
        } else if (!depth) {
            if (--linkage < 0) { print FILENAME ":" FNR ": a brace closes nothing"; bad = 1; linkage = 0 }
            top = ""
        } else if (mark == "{") depth++
        else if (!--depth) {
            if (body) { declare(top, 1); top = "" } else top = top " "
        }
    }
}
function end_file() {
    if (depth || linkage) { print file ": braces do not match"; bad = 1 }
    depth = linkage = in_comment = in_macro = 0; top = before = statement = ""; file = FILENAME
}
# What a name of an op stands in, given the code before and after it: "" if that is one of the two places where ops are appended, which are
# an argument of a function in `appends` and the value of a field op.
function op_misuse(left, right,    depth_, at, c) {
    if (left ~ /(\.|->)[ \t]*op[ \t]*=[ \t]*$/ && right ~ /^[ \t]*[,;}]/) return ""
    if (left !~ /[,(?:][ \t]*$/ || right !~ /^[ \t]*[,:)]/) return 1
    for (at = length(left); at > 0; at--) {
        c = substr(left, at, 1)
        if (c ~ /[)}\]]/) depth_++
        else if (c ~ /[({\[]/ && depth_-- == 0) break
    }
    if (c != "(") return 1
    left = substr(left, 1, at - 1); sub(/[ \t]+$/, "", left); sub(/.*[^A-Za-z0-9_]/, "", left)
    return left in appends ? "" : 1
}
function check_ops(code, text,    done, name, from) {
    from = length(text) - length(code)
    for (done = from; match(substr(text, done + 1), /OP_[A-Z][A-Z0-9_]*/); done += RSTART + RLENGTH - 1) {
        name = substr(text, done + RSTART, RLENGTH)
        if (done + RSTART > 1 && substr(text, done + RSTART - 1, 1) ~ /[A-Za-z0-9_]/) continue
        if (name ~ /_MAP$/ || name ~ /^OP_(ENUM|ROW)$/) continue
        if (op_misuse(substr(text, 1, done + RSTART - 1), substr(text, done + RSTART + RLENGTH))) return 1
    }
    return 0
}
function names_task(name,    word, n) {
    for (n = split(name, word, "_"); n > 0; n--) if (word[n] in task) return 1
    return 0
}
function floor_of(path,    part) {
    if (path ~ /^lockstep\//) { part = path; sub(/^lockstep\//, "", part); sub(/\.h$/, "", part); return public[part] }
    split(path, part_, "/"); return floor[part_[1]]
}
BEGIN {
    n = split(floors, w, " ")
    for (i = 1; i < n; i += 2) floor[w[i]] = w[i + 1]
    n = split(apart, w, " ")
    for (i = 1; i < n; i += 2) is_apart[w[i], w[i + 1]] = 1
    n = split("program_append program_emit append emit emit_call emit_to gradient_emit gradient_accumulate pointwise pool " \
              "reduced offload_instruction xent_gradient attention_gradient", w, " ")
    for (i = 1; i <= n; i++) appends[w[i]] = 1
    n = split("status 0 dtype 0 tensor 2 comm 2 store 3 program 3 hook 3 ops 3 nn 4 optim 4 data 4 mesh 5 parallel 5 pipeline 5 layout 5 " \
              "machine 5 checkpoint 5 cluster 5 plan 6", w, " ")
    for (i = 1; i < n; i += 2) public[w[i]] = w[i + 1]
    n = split("base/base.h base/cores.h base/crc.h base/csv.h base/fewest.h base/file.h base/hash.h base/json.h base/log.h base/mem.h " \
              "base/module.h base/options.h base/pulse.h base/yaml.h base/rng.h base/tasks.h base/text.h base/threads.h base/worker.h " \
              "base/yield.h device/collectives.h device/device.h " \
              "device/cuda/cuda.h device/cuda/ipc_sum.h device/cuda/module.h device/check.h " \
              "tensor/tensor_over.h kernels/kernel.h kernels/op_shapes.h kernels/cpu/route.h comm/comm.h comm/algorithms/steps.h " \
              "comm/failure/flight_recorder.h comm/transports/transport.h comm/transports/shm/region.h " \
              "ir/ir.h ir/builder.h ir/program.h ir/op_info.h ir/distributed_ops.h passes/passes.h passes/gradient.h passes/streams.h " \
              "runtime/runtime.h runtime/store.h runtime/multi_launch.h runtime/readback.h runtime/stream_set.h " \
              "runtime/non_finite.h models/model.h models/hf.h data/array.h data/documents.h data/loader.h data/tokenizer.h " \
              "data/tokens.h parallel/layout.h parallel/mesh/mesh.h parallel/pipeline/sequence.h parallel/pipeline/stage.h " \
              "parallel/sharding/partition.h checkpoint/collective_status.h " \
              "checkpoint/folder.h checkpoint/manifest.h checkpoint/safetensors.h checkpoint/verify.h kernels/cpu/normals.h " \
              "train/config/config.h train/doctor/doctor.h train/faults/faults.h train/launch/launch.h train/parity/parity.h " \
              "train/parity/parity_routes.h train/plan/measure.h train/plan/plan.h train/plan/plan_layout.h train/plan/prices.h " \
              "train/plan/search.h train/plan/step_seconds.h train/plan/step_sim.h plan/cluster.h plan/framework.h plan/goodput.h " \
              "plan/seconds.h train/run/dataset.h train/run/evaluate_saved.h train/run/generate.h " \
              "train/run/machine.h train/run/metrics.h train/run/peak.h train/run/random_tokens.h train/run/rank_devices.h " \
              "train/run/step.h train/run/stop.h " \
              "train/run/trace.h train/run/trainer.h train/run/version.h train/task/task.h " \
              "learn/cards.h learn/history.h learn/learn.h", w, " ")
    for (i = 1; i <= n; i++) offered[w[i]] = 1
    n = split("dnnl.h src/kernels/cpu/onednn/onednn.c jansson.h src/base/json.c yaml.h src/base/yaml.c xxhash.h src/base/hash.c " \
              "zlib.h src/data/gzip.c zstd.h src/data/zstd.c pcre2.h src/data/split.c utf8proc.h src/data/normalize.c " \
              " hwloc.h src/base/cores.c mpi.h src/comm/transports/mpi/world.h " \
              "cuda_runtime_api.h src/device/cuda/cuda.h cublasLt.h src/kernels/cuda/cublaslt.h " \
              "nccl.h src/device/cuda/nccl_library.h cudnn.h src/kernels/cuda/cudnn_library.h sqlite3.h src/learn/history.c " \
              "curses.h src/learn/page.c", w, " ")
    for (i = 1; i < n; i += 2) vendor[w[i]] = w[i + 1]
    while ((getline line < "src/train/task/task.h") > 0)
        if (line ~ /^ *TASK\(/) { sub(/^ *TASK\(/, "", line); sub(/\).*/, "", line); task[line] = task[line "s"] = 1; tasks++ }
}
FILENAME == "include/lockstep/nn.h" && /^ *FAMILY\(/ {
    line = $0; sub(/.*FAMILY\(/, "", line); sub(/,.*/, "", line); family["LS_" line] = 1; families++
}
FILENAME ~ /^src\// && FILENAME !~ /^src\/models\// {
    for (line = $0; match(line, /LS_[A-Z0-9_]+/); line = substr(line, RSTART + RLENGTH))
        if (substr(line, RSTART, RLENGTH) in family) {
            print FILENAME ":" FNR ": names a model family; use the properties that ls_architecture_family() returns"; bad = 1
        }
}
FILENAME ~ /^src\/(train|cli)\// && FILENAME !~ /^src\/train\/task\// && !/^ *\* / {
    line = $0; gsub(/"([^"\\]|\\.)*"/, "", line); sub(/\/\*.*/, "", line)
    for (; match(line, /[A-Za-z_][A-Za-z0-9_]*/); line = substr(line, RSTART + RLENGTH))
        if (names_task(substr(line, RSTART, RLENGTH))) {
            print FILENAME ":" FNR ": " substr(line, RSTART, RLENGTH) " names a task; use the row that task_of() returns"; bad = 1
        }
}
FNR == 1 { end_file() }
{
    code = code_of($0); is_macro = in_macro || code ~ /^[ \t]*#/; in_macro = is_macro && code ~ /\\$/
    if (is_macro && !was_macro) statement = ""
    was_macro = in_macro; text = statement " " code
    if (!is_macro) read_declarations(code)
}
FILENAME ~ /^src\/.*[.](c|cu)$/ && code ~ /(^|[^A-Za-z0-9_])extern([^A-Za-z0-9_]|$)/ && code !~ /extern ""/ {
    print FILENAME ":" FNR ": extern; include the header of the file that defines it"; bad = 1
}
FILENAME ~ /^(src|include)\// && !is_macro {
    line = before " " code
    while (match(line, /(^|[^A-Za-z0-9_])struct[ \t]+(__attribute__[ \t]*\(\([^)]*\)+[ \t]*)?[A-Za-z_][A-Za-z0-9_]*[ \t]*[{]/)) {
        name = substr(line, RSTART, RLENGTH - 1); line = substr(line, RSTART + RLENGTH)
        sub(/[ \t]+$/, "", name); sub(/.*[^A-Za-z0-9_]/, "", name); tags++
        if ((name, FILENAME) in tagged) continue
        tagged[name, FILENAME] = 1; tag[name]++; tag_places[name] = tag_places[name] " " FILENAME ":" FNR
    }
    before = code ~ /struct[^{};()]*$/ ? code : code ~ /[^ \t]/ ? "" : before
}
FILENAME ~ /^src\// && FILENAME !~ /^src\/(kernels|train\/faults)\// && code ~ /OP_[A-Z]/ && check_ops(code, text) {
    print FILENAME ":" FNR ": names an op; put what is special about it into a column of its row in op_list.h or ir.h"; bad = 1
}
FILENAME ~ /^src\// && FILENAME !~ /^src\/train\/faults\// && text ~ /fault|FAULT_/ && !armed {
    line = text; gsub(/__atomic_load_n[ \t]*\([ \t]*&[ \t]*[a-z_]*_fault[ \t]*,/, "", line)
    if (line ~ /&[ \t(]*[a-z_]+_fault([^A-Za-z0-9_]|$)/ || line ~ /[a-z]_fault[ \t)]*=([^=]|$)/ ||
        line ~ /run(\.|->)fault([ \t]*\.[ \t]*[a-z]+)?[ \t)]*=([^=]|$)/ || (FILENAME !~ /^src\/(train|cli)\// && code ~ /FAULT_[A-Z]/)) {
        print FILENAME ":" FNR ": arms or names an injected fault; only src/train/faults does"; bad = armed = 1  # once a statement
    }
}
{
    statement = code ~ /[;{}][ \t\\]*$/ || (is_macro && !in_macro) ? "" : text; sub(/\\$/, "", statement)
    if (statement == "") armed = 0
    if (length(statement) > 4000) statement = substr(statement, length(statement) - 2000)  # a long table
}
FNR == 1 && FILENAME ~ /^include\/lockstep\// {
    name = FILENAME; sub(/.*\//, "", name); sub(/\.h$/, "", name)
    if (!(name in public)) { print FILENAME ": this public header has no layer"; bad = 1 }
}
/^[ \t]*#[ \t]*include/ {
    if ($0 !~ /include[ \t]*[<"]/) { print FILENAME ":" FNR ": an include without the name of a file"; bad = 1 }
    line = $0; sub(/^[^<"]*[<"]/, "", line); sub(/[>"].*$/, "", line)
    if (line in vendor && FILENAME != vendor[line] && FILENAME !~ /^(bench|tests\/cuda_stub)\//) {
        print FILENAME ":" FNR ": " line " belongs in " vendor[line] " alone"; bad = 1
    }
    if (line ~ /(^|\/)[.][.]\//) { print FILENAME ":" FNR ": an include has a .. in it; name the file from src"; bad = 1 }
    if (FILENAME ~ /^labs\// && line !~ /^lockstep\// && line !~ /^lab[a-z_]*\.h$/ && $0 ~ /"/) {
        print FILENAME ":" FNR ": labs use the public headers only, not " line; bad = 1
    }
    if (FILENAME ~ /^include\// && line !~ /^lockstep\// && $0 ~ /"/) { print FILENAME ":" FNR ": a public header includes " line; bad = 1 }
    if (FILENAME ~ /^(src|include)\//) {
        name = FILENAME; sub(/^(src|include)\//, "", name); split(name, p, "/"); mine = floor_of(name); its = floor_of(line)
        noun = name ~ /^lockstep\// ? substr(name, 10, length(name) - 11) : p[1]
        its_noun = line ~ /^lockstep\// ? substr(line, 10, length(line) - 11) : substr(line, 1, index(line, "/") - 1)
        if ((noun, its_noun) in is_apart) { print FILENAME ":" FNR ": " noun " uses nothing of " its_noun ": " line; bad = 1 }
        if (mine == "") { print FILENAME ":" FNR ": folder " p[1] " has no layer"; bad = 1 }
        else if (its != "" && its + 0 > mine + 0) { print FILENAME ":" FNR ": layer " mine " includes " line " of layer " its; bad = 1 }
    }
    if (FILENAME ~ /^src\//) {
        split(line, h, "/")
        if (line in offered) used[line] += h[1] != p[1]
        else if (floor[h[1]] != "" && h[1] != p[1]) {
            print FILENAME ":" FNR ": " line " is private to src/" h[1] "; `offered` in tools/layers.sh lists what is not"; bad = 1
        }
    }
}
function too_many(name, what, n, where,    place, i) {
    if (n <= 3) return
    for (i = split(where, place, " "); i > 0; i--)
        print place[i] ": " name " is " what " in " n " files; put the noun of the file before it"
    bad = 1
}
END {
    end_file()
    for (line in prototype) {
        name = prototype[line]
        if (name in owner && !((name, substr(line, 1, index(line, ":") - 1)) in has_body)) {
            print line ": declares " name "() of " owner[name] "; include the header of the file that defines it"; bad = 1
        }
    }
    for (name in definitions) too_many(name, "a static name", definitions[name], places[name])
    for (name in tag) too_many("struct " name, "a tag", tag[name], tag_places[name])
    if (!statics) { print "no static names"; bad = 1 }
    if (!tags) { print "no struct tags"; bad = 1 }
    if (!tasks) { print "no tasks in src/train/task/task.h"; bad = 1 }
    for (line in offered) if (!used[line]) { print line " is in `offered`, but no other folder includes it"; bad = 1 }
    if (!families) { print "no families in include/lockstep/nn.h"; bad = 1 }
    if (!bad) print "layers: every include points down"; exit bad }'
