#!/bin/sh
# Two programs on one GPU, each within a budget of its own; who is left gets all of it.
#
#     FIRST=6GiB SECOND=2GiB sh two_programs.sh 'python train.py' 'python serve.py'
#
# What it shows: a region that is made beforehand has a name, so that a running program's budget
# can be changed; `hamiregion show` and `top` look at it meanwhile. No container, and no root.
set -eu

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT

# What each may allocate, and its share of the GPU's time.
hamiregion create "$directory/first.cache" --memory "${FIRST:-6GiB}" --sm 70
hamiregion create "$directory/second.cache" --memory "${SECOND:-2GiB}" --sm 30

hamiregion run --region "$directory/first.cache" -- sh -c "$1" &
first=$!
hamiregion run --region "$directory/second.cache" -- sh -c "$2" &
second=$!

# `run` becomes the program: its exit code is the program's.
code=0
wait "$first" || code=$?
hamiregion limits set "$directory/second.cache" --memory unlimited --sm unlimited
wait "$second" || code=$?
exit "$code"
