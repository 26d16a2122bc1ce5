"""A program that maps regions for writing: those of its arguments, then one for each line."""

import os
import sys

from libhamiregion import open_region

new_root, *paths = sys.argv[1:]
kept = [open_region(path, writable=True) for path in paths]
if new_root:
    os.chroot(new_root)
sys.stdout.write("ready\n")
sys.stdout.flush()
for line in sys.stdin:
    kept.append(open_region(line.rstrip("\n"), writable=True))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
