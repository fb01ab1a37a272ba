#!/bin/sh
# gpu_bundle.sh [FOLDER] - packs a folder that tests lockstep on a machine with an NVIDIA GPU where nothing can be installed.
# gpu_bundle.sh --link BUILD FOLDER - the same folder with links to the programs of the folder BUILD, for the test of its script.
#
# FOLDER (build-gpu/gpu_bundle) is relocatable: the command and its CUDA module, tests with their golden numbers, bench/gpu.py, a text to
# train on, and private copies of the Debian libraries that the programs use, found through $ORIGIN. The machine's own are glibc (2.35 or
# later), libstdc++ and libgcc_s, of which only old symbols are used while Debian's need a later glibc, the driver, and NVIDIA's libraries:
# cuBLASLt, cuDNN and NCCL are found in the toolkit or in a Python environment. FOLDER/run.sh runs all steps there;
# tools/gpu_bundle_run.sh lists them.
set -eu
cd "$(dirname "$0")/.."
build=build-gpu linked=
if [ "${1:-}" = --link ]; then
    linked=1 build=$2
    shift 2
fi
out=${1:-$build/gpu_bundle}
most=$((60 << 20))  # bytes
programs="lockstep lockstep_cuda.so test_gpu_kernels test_golden json_get"
fail() { echo "gpu_bundle: $*" >&2; exit 1; }

build_programs() {
    [ -x /usr/local/cuda/bin/nvcc ] || command -v nvcc >/dev/null || fail "nvcc was not found; install the CUDA toolkit"
    tools/deps.sh gpu_bundle
    mkdir -p $build
    tools/stage.sh configure $build/configure.log cmake -G Ninja -S . -B $build -DONEDNN=OFF ${CMAKE_FLAGS:-}
    tools/stage.sh build $build/build.log cmake --build $build -j"${JOBS:-$(nproc)}" --target lockstep lockstep_cuda test_gpu_kernels \
        test_golden json_get
}

copy_programs() {
    for program in $programs; do
        cp $build/$program "$out/bin/"
        strip --strip-debug "$out/bin/$program"
    done
    # What comes from the machine is not copied.
    for program in "$out"/bin/*; do ldd "$program"; done | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
        grep -v -E '/(libc|libm|libdl|librt|libpthread|libcuda|ld-linux-x86-64|libstdc\+\+|libgcc_s)\.so' |
        while read -r library; do cp -L "$library" "$out/lib/"; done
    for program in "$out"/bin/*; do patchelf --set-rpath '$ORIGIN/../lib' "$program"; done
    for library in "$out"/lib/*; do patchelf --set-rpath '$ORIGIN' "$library"; done
}

[ -n "$linked" ] || build_programs
case $out in /*) ;; *) out=$PWD/$out ;; esac
rm -rf "$out"
mkdir -p "$out/bin" "$out/lib" "$out/tests" "$out/bench"
if [ -n "$linked" ]; then
    for program in $programs; do ln -s "$(cd "$build" && pwd)/$program" "$out/bin/"; done
else
    copy_programs
fi
cp tools/gpu_bundle_run.sh "$out/run.sh"
cp -r tests/golden "$out/tests/"
cp bench/gpu.py "$out/bench/"
cat README.md ARCHITECTURE.md docs/*.md >"$out/text.txt"
{ git describe --always --dirty 2>/dev/null || echo unknown; } >"$out/version.txt"
[ -z "$linked" ] || exit 0

bytes=$(du -sb "$out" | cut -f1)
[ "$bytes" -le $most ] || fail "$out has $bytes bytes; it must not have more than $most"
for program in "$out"/bin/*; do
    ldd "$program" | grep -q 'not found' && fail "$program: $(ldd "$program" | grep 'not found')"
done
echo "$out: $((bytes >> 20)) MiB; on the machine with the GPU: run.sh [RESULTS]"
