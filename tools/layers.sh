#!/bin/sh
# layers.sh - the layer check: a file includes headers of its own layer or a lower one; a header of src is private to its folder unless
# `offered` below names it; a vendor's header is included in one named file; no line of code, scripts, tests or text is longer than 140
# columns, except rows of tables; files of tests have fewer than 500 lines. No file outside of src/models names a model family; the family's
# row has its properties. No file of src/train and src/cli outside of src/train/task names a task (TASK_MAP of task.h), as a part of a name
# between underscores; the task's row has its properties. Outside of kernels and injected faults no code compares an op with a name or has a
# table of some ops; its row has its properties. Outside of src/train/faults no code sets a pointer to an injected fault. No name of a
# static function or variable is used in more than three files. Every file that a comment names exists.
cd "$(dirname "$0")/.." || exit 1
export LC_ALL=C # every awk reads bytes
{ find src include labs tests bench tools -name '*.[ch]' -o -name '*.cu' -o -name '*.cc' -o -name '*.sh' -o -name '*.py' \
    -o -name '*.awk' -o -name '*.js'
  ls CMakeLists.txt Makefile README.md ARCHITECTURE.md docs/benchmarks.md docs/planner.md; } | sort | xargs awk '
    { line = $0; gsub(/[\200-\277]/, "", line) }  # one column a character
    FILENAME ~ /[.]md$/ && (/^[|]/ || /^!\[/) { next }  # a row of a table and a picture are a line each
    length(line) > 140 { print FILENAME ":" FNR ": " length(line) " columns; 140 are the limit"; bad = 1 }
    FNR == 500 && FILENAME ~ /^tests/ { print FILENAME ": 500 lines or more; split it by subject"; bad = 1 }
    END { exit bad }' || exit 1
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
END { exit bad }' || { rm -f "$names"; exit 1; }
rm -f "$names"
find src include labs tests -name '*.[ch]' -o -name '*.cu' -o -name '*.cc' | sort | xargs awk '
function define_static(line, after,    name) {
    name = line; sub(after, "", name); sub(/.*[ *&]/, "", name)
    if (FILENAME ~ /^tests\/fuzz\// || (name, FILENAME) in defined) return
    defined[name, FILENAME] = 1; definitions[name]++; places[name] = places[name] " " FILENAME
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
    n = split("base 0 device 1 tensor 2 kernels 2 comm 2 ir 3 passes 3 runtime 3 models 4 optim 4 data 4 " \
              "parallel 5 checkpoint 5 plan 5 train 6 learn 6 cli 7", w, " ")
    for (i = 1; i < n; i += 2) floor[w[i]] = w[i + 1]
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
FILENAME ~ /^src\// && FILENAME !~ /^src\/(kernels|train\/faults)\// && /op\)? *([!=<>]=|[<>]) *OP_[A-Z]|case OP_[A-Z]|\[OP_[A-Z]/ {
    print FILENAME ":" FNR ": names an op; put what is special about it into a column of its row in op_list.h or ir.h"; bad = 1
}
FILENAME ~ /^src\// && FILENAME !~ /^src\/train\/faults\// && (/_n\(&[a-z_]*_fault,|[a-z]_fault = |run\.fault(\.[a-z]+)? = [^=]/ ||
        (FILENAME !~ /^src\/(train|cli)\// && /FAULT_[A-Z]/)) && !/__atomic_load_n/ {
    print FILENAME ":" FNR ": arms or names an injected fault; only src/train/faults does"; bad = 1
}
FNR == 1 && FILENAME ~ /^include\/lockstep\// {
    name = FILENAME; sub(/.*\//, "", name); sub(/\.h$/, "", name)
    if (!(name in public)) { print FILENAME ": this public header has no layer"; bad = 1 }
}
/^static / { sub(/__launch_bounds__\([^)]*\) ?/, "") }
/^static [^=;{(]*[ *&][a-z_0-9]+\(/ { define_static($0, "[(].*") }
/^static [^={(]*[ *][a-z_0-9]+(\[[^=]*\])*( =|;)/ { define_static($0, "([[][^=]*[]])*( =|;).*") }
/^static (const )?struct [a-z_0-9 ]*\{$/ { in_static = 1 }
in_static && /^}/ { define_static($0, "([[][^=]*[]])*( =|;).*"); in_static = 0 }
/^[ \t]*#[ \t]*include/ {
    line = $0; sub(/^[^<"]*[<"]/, "", line); sub(/[>"].*$/, "", line)
    if (line in vendor && FILENAME != vendor[line] && FILENAME !~ /^tests\/cuda_stub\//) {
        print FILENAME ":" FNR ": " line " belongs in " vendor[line] " alone"; bad = 1
    }
    if (FILENAME ~ /^labs\// && line !~ /^lockstep\// && line !~ /^lab[a-z_]*\.h$/ && $0 ~ /"/) {
        print FILENAME ":" FNR ": labs use the public headers only, not " line; bad = 1
    }
    if (FILENAME ~ /^include\// && line !~ /^lockstep\// && $0 ~ /"/) { print FILENAME ":" FNR ": a public header includes " line; bad = 1 }
    if (FILENAME ~ /^src\//) {
        split(FILENAME, p, "/"); mine = floor[p[2]]; its = floor_of(line)
        if (mine == "") { print FILENAME ": folder " p[2] " has no layer"; bad = 1 }
        else if (its != "" && its + 0 > mine + 0) { print FILENAME ":" FNR ": layer " mine " includes " line " of layer " its; bad = 1 }
        split(line, h, "/")
        if (line in offered) used[line] += h[1] != p[2]
        else if (floor[h[1]] != "" && h[1] != p[2]) {
            print FILENAME ":" FNR ": " line " is private to src/" h[1] "; `offered` in tools/layers.sh lists what is not"; bad = 1
        }
    }
}
END {
    for (name in definitions)
        if (definitions[name] > 3) {
            print name " is a static name in " definitions[name] " files; put the noun of the file before it:" places[name]; bad = 1
        }
    if (!tasks) { print "no tasks in src/train/task/task.h"; bad = 1 }
    for (line in offered) if (!used[line]) { print line " is in `offered`, but no other folder includes it"; bad = 1 }
    if (!families) { print "no families in include/lockstep/nn.h"; bad = 1 }
    if (!bad) print "layers: every include points down"; exit bad }'
