#!/usr/bin/env bash
# The native kernels' tests under AddressSanitizer and UndefinedBehaviorSanitizer: `native/sanitize.sh PYTHON [pytest's words]`.
# A build of its own, in build/sanitize, for the instruction sets that this processor has.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
shift
folder=build/sanitize
nanobind=$folder/nanobind
compiler=${CXX:-g++}

if [ ! -d "$nanobind/nanobind" ]; then
    required=$(sed -n 's/.*"\(nanobind[^"]*\)".*/\1/p' pyproject.toml | head -n 1)
    "$python" -m pip --disable-pip-version-check install --quiet --target "$nanobind" "$required"
fi
avx512=OFF
if grep -qs avx512_vnni /proc/cpuinfo; then avx512=ON; fi
cmake -S native -B "$folder/native" -DHEADRACE_SANITIZE=ON -DHEADRACE_AVX512=$avx512 -DCMAKE_CXX_COMPILER="$compiler" \
    -DPython_EXECUTABLE="$(realpath -s "$python")" -Dnanobind_DIR="$PWD/$nanobind/nanobind/cmake" >"$folder/cmake.log"
cmake --build "$folder/native" --parallel "$(nproc)" >"$folder/build.log" || { tail -n 40 "$folder/build.log"; exit 1; }

# Before all else, or nothing of it works: the sanitizers' own library, and the one whose exceptions it watches.
preload="$("$compiler" -print-file-name=libasan.so) $("$compiler" -print-file-name=libstdc++.so)"
# What a sanitizer says is said by the library, not by Python: pytest must not hold it back.
if [ $# -eq 0 ]; then set -- -q --capture=sys tests/cpu/test_ops_native.py tests/cpu/test_shared_parts.py -k "not projected_row and not more_threads" -n0; fi
LD_PRELOAD="$preload" ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
    HEADRACE_KERNELS="$(echo "$PWD/$folder"/native/_kernels.*.so)" "$python" -m pytest "$@"
