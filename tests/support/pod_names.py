"""Names and numbers of pods for tests, and what no name may be."""

UID = "0b5c1e64-27a1-4a1c-8a3c-7ab0d3ad3b0f"
OTHER_UID = "11111111-2222-3333-4444-555555555555"
STATIC = "7a1cf0d8e2b34c5696a7b8c9d0e1f203"
ID = "4f6c1d0e9b8a7f6e5d4c3b2a190817263544536271809faebdccdbea98765432"
OTHER_ID = "b" * 64

HOSTILE = [
    "a\nb",
    "\x1b[2J",
    'a"b',
    "a'b",
    "a\\b",
    "../../etc",
    "..",
    "a/b",
    "A",
    "-a",
    "a-",
    "a b",
    "a\x00b",
    "a" * 4096,
    "\u202e",
    "",
]
