#!/bin/sh
# The storm and a busy program under a region, with what the Makefile has built in $SANITIZED:
# `sanitized.sh UUID`. A finding of the sanitizer ends a program with an error.
set -eu
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
export LD_LIBRARY_PATH="$SANITIZED"
export CUDA_DEVICE_MEMORY_SHARED_CACHE="$place/region" FAKE_CUDA_STATE="$place/gpus"
"$SANITIZED/make_region" "$place/region" 2147483648 50 "$1"

# Four threads with a thousand calls each: a race in the books is missed in a hundred.
for seed in 1 2 3; do
	status=0
	"$SANITIZED/storm" $seed 2 4 3 1000 33554432 6 0 2>"$place/said" || status=$?
	cat "$place/said" >&2
	# The library has nothing to say of a storm.
	if [ $status -ne 0 ] || grep -q libhamiregion "$place/said"; then
		echo "sanitized.sh: the storm of seed $seed ended with status $status" >&2
		exit 1
	fi
done

# A second and a half with the SM limit, its thread and two threads of launches.
for style in kernel graph; do
	status=0
	timeout --signal=INT 1.5 "$SANITIZED/busy" $style busy_100us 1 20 0 || status=$?
	if [ $status -ne 124 ]; then
		echo "sanitized.sh: the busy program with $style launches ended with status $status" >&2
		exit 1
	fi
done
