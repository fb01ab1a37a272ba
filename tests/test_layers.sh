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
# inject FILE WORDS TEXT: appends TEXT to the file; its first line must be reported with WORDS.
inject() {
    say "$1:$(($(cat "copy/$1" 2>/dev/null | wc -l) + 1)): $2" >>expected.txt
    say "$3" >>"copy/$1"
}

# inject_static FILES TEXT [STEM]: TEXT in each of four files; in it NAME stands for a name that begins with STEM, NAME_too for another one.
forms=0
inject_static() {
    forms=$((forms + 1)) name=${3:-injected}_$forms text=$2
    for file in $1; do
        case $text in
        *NAME_too*) say "$file:$(($(cat "copy/$file" 2>/dev/null | wc -l) + 1)): ${name}_too is a static name in 4 files" >>expected.txt ;;
        esac
        inject "$file" "$name is a static name in 4 files" "$(say "$text" | sed "s/NAME/$name/g")"
    done
}
c_files="src/base/mem.c src/cli/main.c labs/lab.c tests/test_cli_injected.c"
cuda_files="src/kernels/cuda/norm.cu src/kernels/cuda/rope.cu src/kernels/cuda/conv.cu src/kernels/cuda/route.cu"
inject_static "$c_files" 'static int NAME;'
inject_static "$c_files" 'static bool NAME, NAME_too;'
inject_static "$c_files" 'static int NAME[2] = { 1, 2 }, *NAME_too = &other;'
inject_static "$c_files" 'static const struct { int a, b; } NAME[] = { { 1, 2 }, { 3, 4 } };'
inject_static "$c_files" 'static const struct {
    int a, b;
} NAME[] = { { 1, 2 }, { 3, 4 } };'
inject_static "$c_files" 'static __attribute__((noinline)) int NAME(int x) { return x; }'
inject_static "$c_files" 'static int
NAME(int x)
{
    return x;
}'
inject_static "$c_files" 'static void (*NAME)(int x);'
inject_static "$c_files" 'static int (*const NAME[2])(int x) = { 0 };'
inject_static "$c_files" 'static void (*NAME(int x))(int y) { return 0; }'
inject_static "$c_files" 'static const char *const NAME = "{;";'
inject_static "$c_files" 'static const int NAME = 1;' INJECTED
inject_static "$c_files" 'inline static int NAME(void) { return 1; }'
inject_static "$cuda_files" 'template <typename T, int N> static __global__ void __launch_bounds__(256) NAME(struct array x) { }'
inject_static "$cuda_files" 'template <typename T>
static T NAME(T x)
{
    return x;
}'

# Struct tags, on one line and on two.
for file in src/base/mem.c src/cli/main.c src/comm/comm.c src/data/loader.c; do
    inject "$file" "struct injected_tag is a tag in 4 files" 'struct injected_tag { int x; };'
    say 'struct injected_tag_2' >>"copy/$file"
    inject "$file" "struct injected_tag_2 is a tag in 4 files" '{ int x; };'
done

# Includes.
inject src/base/mem.c "layer 0 includes lockstep/plan.h of layer 6" '#include "lockstep/plan.h"'
inject src/base/mem.c "layer 0 includes device/device.h of layer 1" '#include "device/device.h"'
inject include/lockstep/tensor.h "layer 2 includes lockstep/pipeline.h of layer 5" '#include "lockstep/pipeline.h"'
inject src/base/mem.c "an include has a .. in it" '#include "../device/device.h"'
inject tests/test_cli_injected.c "an include has a .. in it" '#include "cuda_stub/../helper_comm.h"'
inject src/base/mem.c "an include without the name of a file" '#include HEADER'
inject src/comm/comm.c "comm uses nothing of tensor: lockstep/tensor.h" '#include "lockstep/tensor.h"'
inject src/comm/comm.c "comm uses nothing of tensor: tensor/tensor_over.h" '#include "tensor/tensor_over.h"'
inject src/comm/comm.c "comm uses nothing of kernels: kernels/kernel.h" '#include "kernels/kernel.h"'
inject include/lockstep/comm.h "comm uses nothing of tensor: lockstep/tensor.h" '#include "lockstep/tensor.h"'
inject src/cli/main.c "checkpoint/boxes.h is private to src/checkpoint" '#include "checkpoint/boxes.h"'
inject src/cli/main.c "yaml.h belongs in src/base/yaml.c alone" '#include <yaml.h>'
inject labs/lab.c "labs use the public headers only, not base/mem.h" '#include "base/mem.h"'
inject include/lockstep/data.h "a public header includes base/mem.h" '#include "base/mem.h"'
mkdir copy/src/injected
inject src/injected/injected.c "folder injected has no layer" '#include <stddef.h>'
inject src/cli/main.c "extern; include the header" 'extern int injected_elsewhere;'
inject src/kernels/cuda/norm.cu "extern; include the header" '    extern int injected_elsewhere;'
inject src/cli/main.c "extern; include the header" '#define INJECTED_DECLARE(name) extern int name;'
inject src/base/mem.c "declares ls_store_new() of src/runtime/store.c" 'ls_status ls_store_new(const void *options, void **out);'

# Ops, in code and in tables.
op="names an op; put what is special about it into a column"
for use in 'bool injected(int op) { return op == OP_ADD; }' 'bool injected(int op) { return OP_ADD == op; }' \
    'bool injected(int k) { return k != OP_ADD; }' 'bool injected(int k) { return OP_ADD>=k; }' 'int injected[] = { OP_ADD, OP_MUL };' \
    'int injected[] = { [OP_ADD] = 1 };' 'int injected(int k) { switch (k) { case OP_ADD: return 1; } }' 'int injected = OP_ADD;' \
    'bool injected(int k) { return is_one_of(k, OP_ADD, OP_MUL); }' '#define INJECTED OP_ADD' \
    'void injected(int k) { program_emit(p, k == OP_ADD ? 1 : 2); }' 'void injected(void) { program_emit(p, f[OP_ADD], 1); }'; do
    inject src/passes/lower.c "$op" "$use"
done
say 'bool injected(int k) { return k ==' >>copy/src/passes/lower.c
inject src/passes/lower.c "$op" '    OP_ADD; }'
# These append ops.
say 'void injected(void) { program_emit(p, OP_ADD, NULL); program_emit(p, k ? OP_ADD : OP_MUL); }
void injected(void) { i->op = OP_ADD; i = f(&(x){ .op = OP_ADD }); program_emit(p,
    OP_ADD, NULL); }' >>copy/src/passes/lower.c

# Injected faults.
fault="arms or names an injected fault"
for use in 'void injected(void) { mem_fault=0; }' 'void injected(void) { mem_fault = injected; }' 'void injected(void) { (mem_fault)=0; }' \
    'void injected(void) { *(void **)&mem_fault = 0; }' 'void injected(void) { __atomic_store_n(&mem_fault,0,0); }' \
    'void injected(void) { x = __atomic_load_n(&mem_fault, 0); mem_fault=0; }' 'void injected(void) { p->run.fault.fn=0; }' \
    'int injected = FAULT_SLOW;'; do
    inject src/base/mem.c "$fault" "$use"
done
say 'void injected(void) { mem_fault' >>copy/src/base/mem.c
inject src/base/mem.c "$fault" '    = 0; }'
say 'bool injected(void) { return mem_fault == 0; }' >>copy/src/base/mem.c

# Names of families, of tasks and of files; form.
inject src/train/run/step.c "names a model family" 'int injected = LS_GPT2;'
inject src/train/run/step.c "injected_image_size names a task" 'int injected_image_size;'
inject src/base/mem.c "there is no file injected_gone.c" '/* as injected_gone.c says */'
inject docs/planner.md "141 columns; 140 are the limit" "$(printf '%0141d' 0)"
inject src/base/mem.c "141 columns; 140 are the limit" "$(printf '// %0138d' 0)"
say "include/lockstep/injected.h: this public header has no layer" >>expected.txt
say '#define INJECTED' >copy/include/lockstep/injected.h
say "tests/test_injected_long.c: 500 lines or more" >>expected.txt
printf '%500s' '' | tr ' ' '\n' >copy/tests/test_injected_long.c
say "src/base/injected_open.c: braces do not match" >>expected.txt
say 'int injected(void) {' >copy/src/base/injected_open.c
say "base/injected.h is in \`offered\`, but no other folder includes it" >>expected.txt
sed -i 's|"base/base.h |"base/injected.h " \\\n"base/base.h |' copy/tools/layers.sh

copy/tools/layers.sh >out.txt 2>&1 && bad "a tree with violations is taken"
while IFS= read -r line; do
    grep -qF -e "$line" out.txt || bad "not reported: $line"
done <expected.txt
grep -vF -f expected.txt out.txt >more.txt && bad "reported, but not injected: $(cat more.txt)"
[ "$(wc -l <out.txt)" -eq "$(wc -l <expected.txt)" ] || bad "$(wc -l <out.txt) lines for $(wc -l <expected.txt) violations"

# What objects need of each other.
"$top/tools/layers.sh" objects "$build" >out.txt 2>&1 || bad "objects of this build: $(cat out.txt)"
mkdir -p empty objects/injected.dir/src/base objects/injected.dir/src/train objects/injected.dir/src/comm objects/injected.dir/src/tensor
ln -s objects/injected.dir/src src
say 'int injected_high(void); int injected_low(void) { return injected_high(); }' >src/base/low.c
say 'int injected_low(void); int injected_high(void) { return injected_low(); }' >src/train/high.c
say 'extern int injected_shape; int injected_talk(void) { return injected_shape; }' >src/comm/talk.c
say 'int injected_talk(void); int injected_shape; int injected_tensor(void) { return injected_talk(); }' >src/tensor/shape.c
for file in base/low train/high comm/talk tensor/shape; do
    ${CC:-cc} -c "src/$file.c" -o "src/$file.c.o" || bad "$file.c does not compile"
done
"$top/tools/layers.sh" objects objects . >out.txt 2>&1 && bad "objects that need higher ones are taken"
grep -qxF "objects/injected.dir/src/base/low.c.o: base needs injected_high, which only train has" out.txt ||
    bad "injected_high: $(cat out.txt)"
grep -qxF "objects/injected.dir/src/comm/talk.c.o: comm needs injected_shape, which only tensor has" out.txt ||
    bad "injected_shape: $(cat out.txt)"
[ "$(wc -l <out.txt)" -eq 2 ] || bad "other objects are reported: $(cat out.txt)"
"$top/tools/layers.sh" objects empty >out.txt 2>&1 && bad "a folder without objects is taken"

say "$failures failures"
[ $failures -eq 0 ]
