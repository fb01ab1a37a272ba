#!/bin/sh
# nightly.sh [STAGE...] - what `make nightly` runs, or some of it. A stage that fails does not stop the others; the last lines are a table
# of verdicts and seconds. Exit code 1 if a stage failed. Tests that kill a process do so at 100 places.
#
#   matrix     the suite with whole matrices instead of samples of them
#   cards      every card of `learn` in every size
#   address    the suite under AddressSanitizer and UndefinedBehaviorSanitizer
#   clang      the suite, built by clang, where a warning is an error
#   threads    the tests of multi-threaded code, under ThreadSanitizer
#   faults     a build without injected faults
#   onednn     a build without oneDNN: every kernel against its reference, the steps that PyTorch wrote, what the command says
#   fuzz       a minute of each fuzz target
set -u
cd "$(dirname "$0")/.."
make=${MAKE:-make} flags=${CMAKE_FLAGS:-}
threads='base|data|checkpoint|program|nn|optim|onednn|comm|ranks|shm|steps|readback|backing|waits_removed'
without_onednn='^test_(kernels.*|matmuls|golden|vjp|nn_model|onednn_module\.sh)$'
table=
failed=0
export LOCKSTEP_KILLS=100

run_stage() {
    case $1 in
    matrix) LOCKSTEP_MATRIX=full $make BUILD=build-matrix CMAKE_FLAGS="$flags -DTEST_TIMEOUT=14400" check ;;
    cards) $make BUILD=build-matrix CMAKE_FLAGS="$flags" all && build-matrix/lockstep learn --check all ;;
    address) $make SANITIZE=address,undefined CMAKE_FLAGS="$flags" check ;;
    clang) $make CC=clang CMAKE_FLAGS="$flags -DWERROR=ON" check ;;
    threads) $make SANITIZE=thread TESTS="$threads" CMAKE_FLAGS="$flags" check ;;
    faults) tools/faults_off.sh build-faults-off ;;
    onednn) $make BUILD=build-onednn-off TESTS="$without_onednn" CMAKE_FLAGS="$flags -DONEDNN=OFF" check ;;
    fuzz) $make fuzz ;;
    esac
}

stages="matrix cards address clang threads faults onednn fuzz"
[ $# -gt 0 ] || set -- $stages
for stage in "$@"; do
    case " $stages " in
    *" $stage "*) ;;
    *) echo "nightly: unknown stage '$stage'; the stages are $stages" >&2 && exit 2 ;;
    esac
done
for stage in "$@"; do
    echo "---- $stage ----"
    began=$(date +%s)
    if run_stage "$stage"; then verdict=passed; else verdict=FAILED failed=1; fi
    table="$table$(printf '%-8s %s %6d s' "$stage" $verdict $(($(date +%s) - began)))
"
done
printf '\n%s' "$table"
exit $failed
