"""The bodies of scrapes, compressed."""

import gzip
import random
import shutil
import subprocess
import sys
from importlib.util import find_spec

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libhamiregion.exporter.bodies import Body, Gzip

SCRAPES = st.lists(st.lists(st.binary(max_size=300) | st.just(b"x" * 40_000)), max_size=5)


def text(body: Body) -> bytes:
    return b"".join(body.parts)


def metric(name: str, figures: list[int]) -> bytes:
    head = f"# HELP {name} Something.\n# TYPE {name} gauge\n"
    return (head + "".join(f'{name}{{a="{i}"}} {f}\n' for i, f in enumerate(figures))).encode()


@given(SCRAPES)
def test_whatever_came_before_each_scrape_is_itself_again_when_uncompressed(
    scrapes: list[list[bytes]],
) -> None:
    compressor = Gzip()
    for parts in scrapes:
        body = Body.of(parts)
        compressed = compressor.compress(body)
        assert gzip.decompress(text(compressed)) == b"".join(parts)
        assert compressed.size == len(text(compressed))


def test_what_has_changed_is_compressed_anew_and_the_rest_is_not() -> None:
    figures = [random.getrandbits(30) for _ in range(20_000)]
    compressor = Gzip()
    first = compressor.compress(Body.of([metric("a", figures), metric("b", figures)]))
    pieces = dict(compressor._last[None])
    again = compressor.compress(Body.of([metric("a", figures), metric("b", figures)]))
    assert text(first) == text(again)
    changed = [*figures[:10_000], 7, *figures[10_001:]]
    parts = [metric("a", changed), metric("b", figures)]
    assert gzip.decompress(text(compressor.compress(Body.of(parts)))) == b"".join(parts)
    new = compressor._last[None].keys() - pieces.keys()
    # Figures of another length move what stands behind them in the same metric, and no other.
    assert 0 < len(new) <= len(pieces) / 2
    # What is not used any more is not kept.
    assert len(compressor._last[None]) <= len(pieces) + 1


def test_it_compresses_nearly_as_well_as_in_one_piece() -> None:
    body = Body.of([metric(f"m{number}", list(range(5000))) for number in range(10)])
    assert Gzip().compress(body).size < 1.3 * len(gzip.compress(text(body), 1))


def test_what_is_asked_for_seldom_does_not_push_out_what_is_asked_for_often() -> None:
    body = Body.of([metric("a", list(range(5000)))])
    compressor = Gzip()
    for number in range(100):
        compressor.compress(body)
        compressor.compress(body, frozenset({f"m{number}"}))
    assert None in compressor._last
    assert len(compressor._last) < 10


def test_equal_texts_give_equal_bytes() -> None:
    body = Body.of([b"a 1\n" * 5000, b"b 2\n" * 5000])
    assert text(Gzip().compress(body)) == text(Gzip().compress(body))


@pytest.mark.skipif(shutil.which("gzip") is None, reason="needs the program gzip")
def test_the_program_gzip_reads_it() -> None:
    body = Body.of([metric("a", list(range(9000))), b"", b"small\n", metric("b", [1])])
    done = subprocess.run(
        ["gzip", "-dc"], input=text(Gzip().compress(body)), capture_output=True, check=True
    )
    assert done.stdout == text(body)
    assert done.stderr == b""


@given(st.lists(st.binary(max_size=50)), st.integers(1, 60))
def test_chunks_are_the_text_in_order_and_no_larger_than_wanted(
    parts: list[bytes], most: int
) -> None:
    body = Body.of(parts)
    chunks = list(body.chunks(most))
    assert b"".join(chunks) == b"".join(parts)
    assert all(len(chunk) <= most for chunk in chunks)
    assert body.size == sum(map(len, parts))


def test_many_small_parts_are_few_chunks() -> None:
    assert len(list(Body.of([b"x" * 100] * 1000).chunks(100_000))) == 1


@pytest.mark.parametrize("missing", ["", "isal"])
def test_the_faster_library_is_used_where_it_is_and_not_needed(missing: str) -> None:
    code = (
        f"import gzip, sys; sys.modules.update({{{missing!r}: None}} if {missing!r} else {{}});"
        "from libhamiregion.exporter import bodies;"
        "text = b'metric{label=\"value\"} 1234\\n' * 5000;"
        "squeezed = b''.join(bodies.Gzip().compress(bodies.Body.of(text)).parts);"
        "assert gzip.decompress(squeezed) == text;"
        "print(bodies.zlib.__name__, len(squeezed) * 20 < len(text))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    module = "zlib" if missing or find_spec("isal") is None else "isal.isal_zlib"
    assert answer.stdout.split() == [module, "True"]
