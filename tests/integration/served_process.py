"""A metrics server as a process of its own, with an answer of any size.

    python served_process.py BYTES [name=value ...]

The names are those of `ServerLimits`, and `web_config`. Prints its URL, then serves until SIGTERM.
"""

import random
import sys
from collections.abc import Iterator
from typing import Any

from scrapers import TextSource

from libhamiregion.exporter import MetricsServer, ServerLimits

LINE = b'served{line="%08d"} %013d\n'


class Counting(TextSource):
    """Says at the end how often it has been asked."""

    rendered = 0

    def pieces(self, *args: Any, **_: Any) -> Iterator[memoryview]:
        self.rendered += 1
        yield from super().pieces()
        yield memoryview(b"rendered %d\n" % self.rendered)
        yield memoryview(b"# EOF\n" * bool(args and args[0]))


def main(size: int, options: list[str]) -> None:
    given: dict[str, Any] = dict(option.split("=", 1) for option in options)
    web_config = given.pop("web_config", None)
    limits = ServerLimits(
        **{
            name: int(float(value)) if name in ("connections", "answers_bytes") else float(value)
            for name, value in given.items()
        }
    )
    # Such as figures are: not to be compressed to nothing.
    dice = random.Random(1)
    count = size // len(LINE % (0, 0))
    text = b"".join([LINE % (number, dice.getrandbits(40)) for number in range(count)])
    server = MetricsServer(Counting(text), "127.0.0.1:0", web_config=web_config, limits=limits)
    print(*server.urls, flush=True)
    server.run()


main(int(sys.argv[1]), sys.argv[2:])
