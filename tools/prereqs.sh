#!/bin/sh
# Say in one go what this machine lacks for building and testing, and what to install. Usage: tools/prereqs.sh [PYTHON]
# Everything else (linters, uv, the engines) is fetched, pinned and hashed, by the targets that need it; what compiling
# needs beyond C is checked where something is compiled (tools/envs.py).
set -u

missing=0
lack() {
    missing=$((missing + 1))
    echo "missing: $1" >&2
    echo "         $2" >&2
}

go_version=$(GOTOOLCHAIN=local go env GOVERSION 2>/dev/null | sed 's/^go//')
case "$go_version" in
    '') lack "go 1.26 or newer" "install Go 1.26 and put its bin folder on PATH" ;;
    1.?|1.?.*|1.1?|1.1?.*|1.2[0-5]|1.2[0-5].*|1.2[0-5][!0-9]*) lack "go 1.26 or newer (found $go_version)" "install Go 1.26 and put its bin folder first on PATH" ;;
esac

python=${1:-python3}
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    lack "Python 3.10 or newer as $python (3.11 for the engines)" "install the packages python3.11 and python3.11-venv"
elif ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    lack "the venv module of $("$python" -V)" "install the package python3-venv"
fi

command -v cc >/dev/null 2>&1 || lack "a C compiler as cc (the race detector and the engine's kernels need it)" "install gcc and the C library's headers (build-essential)"
command -v make >/dev/null 2>&1 || lack "make" "install make"
command -v git >/dev/null 2>&1 || lack "git (the checks of the tree list its files)" "install git"
[ "$(uname -s)" = Linux ] || lack "Linux (found $(uname -s))" "memfd, pidfd and descriptor passing exist on Linux alone"

[ "$missing" -eq 0 ] || exit 1
