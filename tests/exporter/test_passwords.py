"""Passwords: checked one at a time, so that guesses cost one processor at most."""

import base64

import bcrypt
import pytest

from libhamiregion.exporter.passwords import Busy, Passwords


def hashed(password: str) -> str:
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()


def header(password: str, user: str = "me") -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


HOME, ELSEWHERE = "192.0.2.1", "192.0.2.2"
USERS = {"me": hashed("right")}


@pytest.fixture
def passwords() -> Passwords:
    """One whose user has given the right password from home."""
    passwords = Passwords(timeout_s=0.01)
    assert passwords.allow(USERS, header("right"), HOME)
    return passwords


@pytest.mark.parametrize("address", [HOME, ELSEWHERE])
def test_a_password_that_was_right_does_not_wait_for_guesses(passwords, address):
    with passwords._checking, passwords._checking_known:
        assert passwords.allow(USERS, header("right"), address)
        for guess in (header("wrong"), header("right", "you")):
            with pytest.raises(Busy):
                passwords.allow(USERS, guess, address)
    assert not passwords.allow(USERS, header("wrong"), address)


def test_a_known_address_does_not_wait_for_guesses_from_elsewhere(passwords):
    changed = {"me": hashed("another")}
    with passwords._checking:
        assert passwords.allow(changed, header("another"), HOME)


def test_a_password_that_was_right_is_checked_again_for_another_hash(passwords):
    assert not passwords.allow({"me": hashed("another")}, header("right"), HOME)
