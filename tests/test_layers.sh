#!/bin/sh
# test_layers.sh LOCKSTEP TESTS - the layer check (tools/layers.sh) reports violations of each kind, by file and line, and nothing else;
# its check of objects reports symbols of higher layers, and none in this build.
lockstep=$1
. "$2/script.sh"
top=$(cd "$2/.." && pwd)
build=${lockstep%/*}

mkdir copy
for name in src include labs tests bench tools docs CMakeLists.txt Makefile README.md ARCHITECTURE.md; do cp -r "$top/$name" copy; done
copy/tools/layers.sh >out.txt 2>&1 || bad "the tree as it is: $(cat out.txt)"
say "layers: every include points down" | cmp -s - out.txt || bad "the tree as it is: $(cat out.txt)"

: >expected.txt
# plant FILE WORDS TEXT: appends TEXT to the file; its first line must be reported with WORDS.
plant() {
    say "$1:$(($(cat "copy/$1" 2>/dev/null | wc -l) + 1)): $2" >>expected.txt
    say "$3" >>"copy/$1"
}

# plant_static FILES TEXT [STEM]: TEXT in each of four files; in it NAME stands for a name that begins with STEM, NAME_too for another one.
forms=0
plant_static() {
    forms=$((forms + 1)) name=${3:-planted}_$forms text=$2
    for file in $1; do
        case $text in
        *NAME_too*) say "$file:$(($(cat "copy/$file" 2>/dev/null | wc -l) + 1)): ${name}_too is a static name in 4 files" >>expected.txt ;;
        esac
        plant "$file" "$name is a static name in 4 files" "$(say "$text" | sed "s/NAME/$name/g")"
    done
}
c_files="src/base/mem.c src/cli/main.c labs/lab.c tests/test_cli_planted.c"
cuda_files="src/kernels/cuda/norm.cu src/kernels/cuda/rope.cu src/kernels/cuda/conv.cu src/kernels/cuda/route.cu"
plant_static "$c_files" 'static int NAME;'
plant_static "$c_files" 'static bool NAME, NAME_too;'
plant_static "$c_files" 'static int NAME[2] = { 1, 2 }, *NAME_too = &other;'
plant_static "$c_files" 'static const struct { int a, b; } NAME[] = { { 1, 2 }, { 3, 4 } };'
plant_static "$c_files" 'static const struct {
    int a, b;
} NAME[] = { { 1, 2 }, { 3, 4 } };'
plant_static "$c_files" 'static __attribute__((noinline)) int NAME(int x) { return x; }'
plant_static "$c_files" 'static int
NAME(int x)
{
    return x;
}'
plant_static "$c_files" 'static void (*NAME)(int x);'
plant_static "$c_files" 'static int (*const NAME[2])(int x) = { 0 };'
plant_static "$c_files" 'static void (*NAME(int x))(int y) { return 0; }'
plant_static "$c_files" 'static const char *const NAME = "{;";'
plant_static "$c_files" 'static const int NAME = 1;' PLANTED
plant_static "$c_files" 'inline static int NAME(void) { return 1; }'
plant_static "$cuda_files" 'template <typename T, int N> static __global__ void __launch_bounds__(256) NAME(struct array x) { }'
plant_static "$cuda_files" 'template <typename T>
static T NAME(T x)
{
    return x;
}'

# Struct tags, on one line and on two.
for file in src/base/mem.c src/cli/main.c src/comm/comm.c src/data/loader.c; do
    plant "$file" "struct planted_tag is a tag in 4 files" 'struct planted_tag { int x; };'
    say 'struct planted_tag_2' >>"copy/$file"
    plant "$file" "struct planted_tag_2 is a tag in 4 files" '{ int x; };'
done

# Includes.
plant src/base/mem.c "layer 0 includes lockstep/plan.h of layer 6" '#include "lockstep/plan.h"'
plant src/base/mem.c "layer 0 includes device/device.h of layer 1" '#include "device/device.h"'
plant include/lockstep/tensor.h "layer 2 includes lockstep/pipeline.h of layer 5" '#include "lockstep/pipeline.h"'
plant src/base/mem.c "an include has a .. in it" '#include "../device/device.h"'
plant tests/test_cli_planted.c "an include has a .. in it" '#include "cuda_stub/../helper_comm.h"'
plant src/base/mem.c "an include without the name of a file" '#include HEADER'
plant src/comm/comm.c "comm uses nothing of tensor: lockstep/tensor.h" '#include "lockstep/tensor.h"'
plant src/comm/comm.c "comm uses nothing of tensor: tensor/tensor_over.h" '#include "tensor/tensor_over.h"'
plant src/comm/comm.c "comm uses nothing of kernels: kernels/kernel.h" '#include "kernels/kernel.h"'
plant include/lockstep/comm.h "comm uses nothing of tensor: lockstep/tensor.h" '#include "lockstep/tensor.h"'
plant src/cli/main.c "checkpoint/boxes.h is private to src/checkpoint" '#include "checkpoint/boxes.h"'
plant src/cli/main.c "yaml.h belongs in src/base/yaml.c alone" '#include <yaml.h>'
plant labs/lab.c "labs use the public headers only, not base/mem.h" '#include "base/mem.h"'
plant include/lockstep/data.h "a public header includes base/mem.h" '#include "base/mem.h"'
mkdir copy/src/planted
plant src/planted/planted.c "folder planted has no layer" '#include <stddef.h>'
plant src/cli/main.c "extern; include the header" 'extern int planted_elsewhere;'
plant src/kernels/cuda/norm.cu "extern; include the header" '    extern int planted_elsewhere;'
plant src/cli/main.c "extern; include the header" '#define PLANTED_DECLARE(name) extern int name;'
plant src/base/mem.c "declares ls_store_new() of src/runtime/store.c" 'ls_status ls_store_new(const void *options, void **out);'

# Ops, in code and in tables.
op="names an op; put what is special about it into a column"
for use in 'bool planted(int op) { return op == OP_ADD; }' 'bool planted(int op) { return OP_ADD == op; }' \
    'bool planted(int k) { return k != OP_ADD; }' 'bool planted(int k) { return OP_ADD>=k; }' 'int planted[] = { OP_ADD, OP_MUL };' \
    'int planted[] = { [OP_ADD] = 1 };' 'int planted(int k) { switch (k) { case OP_ADD: return 1; } }' 'int planted = OP_ADD;' \
    'bool planted(int k) { return is_one_of(k, OP_ADD, OP_MUL); }' '#define PLANTED OP_ADD' \
    'void planted(int k) { program_emit(p, k == OP_ADD ? 1 : 2); }' 'void planted(void) { program_emit(p, f[OP_ADD], 1); }'; do
    plant src/passes/lower.c "$op" "$use"
done
say 'bool planted(int k) { return k ==' >>copy/src/passes/lower.c
plant src/passes/lower.c "$op" '    OP_ADD; }'
# These append ops.
say 'void planted(void) { program_emit(p, OP_ADD, NULL); program_emit(p, k ? OP_ADD : OP_MUL); }
void planted(void) { i->op = OP_ADD; i = f(&(x){ .op = OP_ADD }); program_emit(p,
    OP_ADD, NULL); }' >>copy/src/passes/lower.c

# Injected faults.
fault="arms or names an injected fault"
for use in 'void planted(void) { mem_fault=0; }' 'void planted(void) { mem_fault = planted; }' 'void planted(void) { (mem_fault)=0; }' \
    'void planted(void) { *(void **)&mem_fault = 0; }' 'void planted(void) { __atomic_store_n(&mem_fault,0,0); }' \
    'void planted(void) { x = __atomic_load_n(&mem_fault, 0); mem_fault=0; }' 'void planted(void) { p->run.fault.fn=0; }' \
    'int planted = FAULT_SLOW;'; do
    plant src/base/mem.c "$fault" "$use"
done
say 'void planted(void) { mem_fault' >>copy/src/base/mem.c
plant src/base/mem.c "$fault" '    = 0; }'
say 'bool planted(void) { return mem_fault == 0; }' >>copy/src/base/mem.c

# Names of families, of tasks and of files; form.
plant src/train/run/step.c "names a model family" 'int planted = LS_GPT2;'
plant src/train/run/step.c "planted_image_size names a task" 'int planted_image_size;'
plant src/base/mem.c "there is no file planted_gone.c" '/* as planted_gone.c says */'
plant docs/planner.md "141 columns; 140 are the limit" "$(printf '%0141d' 0)"
plant src/base/mem.c "141 columns; 140 are the limit" "$(printf '// %0138d' 0)"
say "include/lockstep/planted.h: this public header has no layer" >>expected.txt
say '#define PLANTED' >copy/include/lockstep/planted.h
say "tests/test_planted_long.c: 500 lines or more" >>expected.txt
printf '%500s' '' | tr ' ' '\n' >copy/tests/test_planted_long.c
say "src/base/planted_open.c: braces do not match" >>expected.txt
say 'int planted(void) {' >copy/src/base/planted_open.c
say "base/planted.h is in \`offered\`, but no other folder includes it" >>expected.txt
sed -i 's|"base/base.h |"base/planted.h " \\\n"base/base.h |' copy/tools/layers.sh

copy/tools/layers.sh >out.txt 2>&1 && bad "a tree with violations is taken"
while IFS= read -r line; do
    grep -qF -e "$line" out.txt || bad "not reported: $line"
done <expected.txt
grep -vF -f expected.txt out.txt >more.txt && bad "reported, but not planted: $(cat more.txt)"
[ "$(wc -l <out.txt)" -eq "$(wc -l <expected.txt)" ] || bad "$(wc -l <out.txt) lines for $(wc -l <expected.txt) violations"

# What objects need of each other.
"$top/tools/layers.sh" objects "$build" >out.txt 2>&1 || bad "objects of this build: $(cat out.txt)"
mkdir -p empty objects/planted.dir/src/base objects/planted.dir/src/train objects/planted.dir/src/comm objects/planted.dir/src/tensor
ln -s objects/planted.dir/src src
say 'int planted_high(void); int planted_low(void) { return planted_high(); }' >src/base/low.c
say 'int planted_low(void); int planted_high(void) { return planted_low(); }' >src/train/high.c
say 'extern int planted_shape; int planted_talk(void) { return planted_shape; }' >src/comm/talk.c
say 'int planted_talk(void); int planted_shape; int planted_tensor(void) { return planted_talk(); }' >src/tensor/shape.c
for file in base/low train/high comm/talk tensor/shape; do
    ${CC:-cc} -c "src/$file.c" -o "src/$file.c.o" || bad "$file.c does not compile"
done
"$top/tools/layers.sh" objects objects . >out.txt 2>&1 && bad "objects that need higher ones are taken"
grep -qxF "objects/planted.dir/src/base/low.c.o: base needs planted_high, which only train has" out.txt ||
    bad "planted_high: $(cat out.txt)"
grep -qxF "objects/planted.dir/src/comm/talk.c.o: comm needs planted_shape, which only tensor has" out.txt ||
    bad "planted_shape: $(cat out.txt)"
[ "$(wc -l <out.txt)" -eq 2 ] || bad "other objects are reported: $(cat out.txt)"
"$top/tools/layers.sh" objects empty >out.txt 2>&1 && bad "a folder without objects is taken"

say "$failures failures"
[ $failures -eq 0 ]
