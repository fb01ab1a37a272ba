#!/bin/sh
# test_mpi.sh LOCKSTEP TESTS - ranks over MPI, with each implementation that is installed and built: messages, the table of collectives,
# the line of every rank if one makes a mismatched call, leaves or dies, and environment variables that contradict one another. The
# collectives of 8 ranks run with the first implementation; LOCKSTEP_MATRIX=full: with both.
set -u
lockstep=$1
folder=$(cd "$(dirname "$lockstep")" && pwd)
. "$2/script.sh"
ran=0

# Open MPI: as root, more ranks than cores, without a warning; containers forbid its way of copying between processes.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_btl=self,vader OMPI_MCA_pml=ob1
export OMPI_MCA_btl_vader_single_copy_mechanism=none PMIX_MCA_gds=hash
export OMP_NUM_THREADS=1
ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0  # both implementations keep memory
export ASAN_OPTIONS

# ranks N COMMAND...: under the mpirun of $kind; out.txt, err.txt, $got. If ranks end while MPICH's mpirun still starts them, SIGPIPE may
# kill it, and nothing is printed: then they are started again.
ranks() {
    n=$1
    shift
    for again in 1 2 3 4 5; do
        timeout -k 5 180 "mpirun.$kind" -n "$n" "$@" >out.txt 2>err.txt
        got=$?
        [ "$kind" = mpich ] && [ $got -eq 141 ] && [ ! -s out.txt ] && [ ! -s err.txt ] || break
        say "mpich: its mpirun was killed by SIGPIPE, and starts again: $*"
    done
}

# expect CODE N COMMAND...
expect() {
    want=$1
    shift
    ranks "$@"
    [ $got -eq "$want" ] || bad "$kind: exit $got, not $want: $*: $(cat out.txt err.txt)"
}

# Each of the given ranks prints one line of the form "rank R: ...WORDS...".
says() {
    words=$1
    shift
    for rank in "$@"; do
        [ "$(grep -c "^test: rank $rank: .*$words" err.txt)" -eq 1 ] || bad "$kind: rank $rank does not say '$words' once: $(cat err.txt)"
    done
}

for kind in openmpi mpich; do
    if ! command -v "mpirun.$kind" >/dev/null; then
        say "skipped: $kind: no mpirun.$kind"
        continue
    fi
    if [ ! -f "$folder/lockstep_$kind.so" ]; then
        say "skipped: $kind: lockstep_$kind.so was not built, for there was no mpicc.$kind"
        continue
    fi
    ran=$((ran + 1))

    for n in 2 3; do
        expect 0 $n "$folder/test_mpi" row
        grep -q "^row: $n ranks" out.txt || bad "$kind: row of $n: $(cat out.txt err.txt)"
    done
    eight=8
    [ $ran -gt 1 ] && [ "${LOCKSTEP_MATRIX:-}" != full ] && eight= # takes as long as all else
    for n in 2 3 4 $eight; do
        expect 0 $n "$folder/test_comm" --mpi
    done

    # One rank issues another call, one fails, one leaves: every rank reports it in one line, and the exit code is 3.
    expect 3 3 "$folder/test_mpi" mismatch
    says "rank 0" 0 1 2
    expect 3 3 "$folder/test_mpi" fail
    says "rank 1 has had enough" 0 1 2
    ranks 3 "$folder/test_mpi" leave  # whose code mpirun returns is whose it sees first
    case $got in 1 | 3) ;; *) bad "$kind: exit $got after a rank left: $(cat out.txt err.txt)" ;; esac
    says "rank 1 exited with code 1" 0 2
    # One is killed: mpirun's code is its signal's. Open MPI names it, or one of the others does; MPICH may kill them before they can.
    ranks 3 "$folder/test_mpi" die
    case $kind in openmpi) [ $got -eq 137 ] ;; mpich) [ $got -eq 9 ] ;; esac || bad "$kind: exit $got after a kill: $(cat err.txt)"
    case $kind in openmpi) words="process rank 1 .* signal 9" ;; mpich) words="(signal 9)" ;; esac
    cat out.txt err.txt | grep -q -e "^test: rank [02]: rank 1 is lost" -e "$words" ||
        bad "$kind: nobody says who died: $(cat out.txt err.txt)"

    # A usage error is one line.
    ranks 2 "$lockstep" bench comm -n 20
    [ $got -eq 2 ] && [ "$(grep -c "lockstep bench comm: " err.txt)" -eq 1 ] || bad "$kind: exit $got, not 2 with one line: $(cat err.txt)"

    # Variables that contradict those of the launcher, on every rank (a rank that is refused alone leaves MPICH's others waiting).
    case $kind in openmpi) own=OMPI_COMM_WORLD_RANK ;; mpich) own=PMI_RANK ;; esac
    for command in "$folder/test_mpi row" "$lockstep train --model.preset=llama-tiny --train.steps=1"; do
        RANK=7 ranks 2 $command
        case $got in 1 | 2) ;; *) bad "$kind: RANK=7 gives exit $got: $command: $(cat err.txt)" ;; esac
        grep -q "RANK=7, but $own=[01]" err.txt || bad "$kind: not both variables are named by $command: $(cat err.txt)"
    done
done

[ $ran -gt 0 ] || { say "skipped: no MPI to test with"; exit 77; }
[ $failures -eq 0 ] && say "mpi: $ran implementations"
exit $((failures > 0))
