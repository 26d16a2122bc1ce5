"""A program that maps the regions it is given for writing, and then waits to be ended."""

import os
import sys

from libhamiregion import open_region

new_root, *paths = sys.argv[1:]
kept = [open_region(path, writable=True) for path in paths]
if new_root:
    os.chroot(new_root)
sys.stdout.write("ready\n")
sys.stdout.flush()
sys.stdin.read()
