"""A metrics server as a process of its own, with an answer of any size.

    python served_process.py BYTES [name=value ...]

The names are those of `ServerLimits`, and `web_config`. Prints its URL, then serves until SIGTERM.
"""

import sys
from typing import Any

from libhamiregion.exporter import MetricsServer, ServerLimits


def main(size: int, options: list[str]) -> None:
    given: dict[str, Any] = dict(option.split("=", 1) for option in options)
    web_config = given.pop("web_config", None)
    limits = ServerLimits(**{name: float(value) for name, value in given.items()})
    line = b'served{line="%08d"} 1\n'
    count = size // len(line % 0)
    lines = b"".join([line % number for number in range(count)])
    rendered = 0

    def render(*, openmetrics: bool) -> bytes:
        nonlocal rendered
        rendered += 1
        # A copy of its own for each, as what changes has.
        return bytes(bytearray(lines)) + b"rendered %d\n" % rendered + b"# EOF\n" * openmetrics

    server = MetricsServer(render, "127.0.0.1:0", web_config=web_config, limits=limits)
    print(*server.urls, flush=True)
    server.run()


main(int(sys.argv[1]), sys.argv[2:])
