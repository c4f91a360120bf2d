#!/bin/sh
# Builds the double of libnvidia-ml.so.1. usage: build.sh OUT.so
# CC picks the compiler, for example CC=aarch64-linux-gnu-gcc.
set -eu
[ $# -eq 1 ] || { echo "usage: $0 OUT.so" >&2; exit 2; }
src=$(dirname "$0")
exec "${CC:-cc}" -shared -fPIC -O2 -std=gnu11 -Wall -Wextra -Werror \
	-Wl,-soname,libnvidia-ml.so.1 -o "$1" "$src/nvml.c" -ldl -lpthread
