#!/bin/sh
# Installs the Debian packages that a target needs and that are missing: tools/deps.sh build|demo|clang|format|gpu_bundle|fuzz.
set -eu

case "${1:-build}" in
build) want="gcc g++ cmake make ninja-build pkg-config libdnnl-dev libgomp1 libjansson-dev libyaml-dev libpcre2-dev libutf8proc-dev
    libxxhash-dev libhwloc-dev zlib1g-dev libzstd-dev libsqlite3-dev libncurses-dev libcmocka-dev openmpi-bin
    libopenmpi-dev mpich libmpich-dev iproute2 tmux" ;;
demo)  want="bible-kjv" ;;
format) want="clang-format" ;;
gpu_bundle) want="patchelf" ;;
clang|fuzz) want="clang libclang-rt-14-dev" ;;
*) echo "deps: unknown set of packages '$1'; use build, demo, clang, format, gpu_bundle or fuzz" >&2; exit 2 ;;
esac

missing=""
for package in $want; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $package"
done
[ -z "$missing" ] && exit 0

sudo=""
[ "$(id -u)" -eq 0 ] || sudo="sudo"
if [ -n "$sudo" ] && ! command -v sudo >/dev/null; then
    echo "deps: missing packages:$missing; run as root, or: apt-get install$missing" >&2
    exit 1
fi
echo "installing:$missing"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
{ $sudo apt-get update -qq && $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing; } \
    >"$log" 2>&1 </dev/null || { tail -n 20 "$log" >&2; echo "deps: apt-get could not install:$missing" >&2; exit 1; }
