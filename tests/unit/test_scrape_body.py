"""A scrape's text, compressed once for all clients, and unpacked for those that want it so."""

import gzip
import random
import tracemalloc

import pytest

from libhamiregion.exporter.scrapes import Body

MIB = 1 << 20


@pytest.mark.parametrize("size", [0, 1, 100_000, 3 * MIB])
@pytest.mark.parametrize("compressible", [True, False])
def test_a_body_is_a_gzip_file_of_its_text(size: int, compressible: bool) -> None:
    text = b"some text\n" * (size // 10) if compressible else random.Random(1).randbytes(size)
    pieces = [memoryview(text)[at : at + MIB] for at in range(0, len(text), MIB)]
    body = Body.of(iter(pieces))
    assert gzip.decompress(b"".join(body.parts)) == text
    assert b"".join(body.text()) == text
    assert (body.size, body.text_size) == (sum(map(len, body.parts)), len(text))


def test_a_client_that_reads_slowly_keeps_little_of_a_text_that_cannot_be_compressed() -> None:
    body = Body.of(iter([memoryview(random.Random(2).randbytes(MIB))]))
    clients = [body.text() for _ in range(50)]
    tracemalloc.start()
    try:
        chunks = [next(client) for client in clients]
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert all(chunks)
    # What unpacks takes some 90 KiB itself.
    assert kept / len(clients) < 256 * 1024
