"""What is left alone after failures, and whose failures count together."""

from __future__ import annotations

from libhamiregion.node import Container
from libhamiregion.observation.names import ContainerId
from libhamiregion.services.backoff import Backoff, owner_of


def test_what_fails_is_left_alone_for_more_and_more_passes():
    backoff = Backoff()
    tried = []
    for number in range(300):
        if not backoff.should_skip("a"):
            tried.append(number)
            backoff.failed("a")
    assert tried == [0, 2, 5, 10, 19, 36, 69, 134, 199, 264]
    backoff.recovered("a")
    assert not backoff.should_skip("a")
    backoff.failed("a")
    assert [backoff.should_skip("a") for _ in range(2)] == [True, False]
    backoff.failed("b")
    backoff.retain({"b"})
    assert not backoff.should_skip("a")
    assert backoff.should_skip("b")


def test_whose_failures_count_together_is_nothing_that_a_container_can_change():
    named = Container("uid", "name", "/roots/uid_name", "/roots/uid_name/1.cache")
    renamed = Container("uid", "name", "/roots/uid_name", "/roots/uid_name/2.cache")
    assert owner_of(named) == owner_of(renamed) == "/roots/uid_name"
    docker = ContainerId("c" * 64)
    outside = [
        Container(None, None, None, f"/proc/7/root/{name}", container_id=docker) for name in "ab"
    ]
    assert {owner_of(each) for each in outside} == {"c" * 64}
    loose = [Container(None, None, None, f"/proc/{pid}/root/a", pids=(pid,)) for pid in (7, 8)]
    assert {owner_of(each) for each in loose} == {owner_of(None)}
