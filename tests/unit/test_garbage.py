import gc


def test_no_collection_goes_through_what_was_read_before_the_tests() -> None:
    assert gc.isenabled()
    assert gc.get_freeze_count() > 50_000
