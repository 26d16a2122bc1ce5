"""Run Python among processes of its own: the arguments are the interpreter's."""

import os
import sys

from support.own_processes import move_into_own_processes

if __name__ == "__main__":
    move_into_own_processes(is_on_host=False)
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
