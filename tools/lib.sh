# Sourced by the scripts beside it: the checkout, its virtual environment, and Bazel with its cache.
set -euo pipefail

CKPTD_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=$CKPTD_ROOT/.venv
VENV_PYTHON=$VENV/bin/python
CKPTD_CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/ckptd
cd "$CKPTD_ROOT"

# say WORDS...: what happens now, on stderr, so that a script's output stays its own.
say() { echo "== $*" >&2; }

die() {
    echo "$(basename "$0"): $*" >&2
    exit 1
}

# ckptd_bazel COMMAND [ARGUMENT...]: bazel with a cache of objects that outlives the checkout. Bazel does not
# see the headers in /usr/include, so the cache's name has a hash of what installs them and of the compilers.
ckptd_bazel() {
    local command=$1 packages
    shift
    packages=$(dpkg-query -W -f='${Package} ${Version}\n' | grep -E '^(g\+\+|clang|nasm|protobuf-compiler|lib.*-dev|nlohmann-json3-dev)' | sha256sum)
    bazel "$command" --disk_cache="$CKPTD_CACHE/bazel-${packages:0:16}" "$@"
}
