"""Passwords: checked one at a time, so that guesses cost one processor at most."""

import base64

import bcrypt
import pytest

from libhamiregion.exporter.passwords import Busy, Passwords


def hashed(password: str) -> str:
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()


def header(password: str, user: str = "me") -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def test_a_password_that_was_right_does_not_wait_for_guesses() -> None:
    passwords, users = Passwords(timeout_s=0.01), {"me": hashed("right")}
    assert passwords.allow(users, header("right"))
    with passwords._checking:
        assert passwords.allow(users, header("right"))
        for guess in (header("wrong"), header("right", "you")):
            with pytest.raises(Busy):
                passwords.allow(users, guess)
    assert not passwords.allow(users, header("wrong"))


def test_a_password_that_was_right_is_checked_again_for_another_hash() -> None:
    passwords = Passwords(timeout_s=0.01)
    assert passwords.allow({"me": hashed("right")}, header("right"))
    assert not passwords.allow({"me": hashed("another")}, header("right"))
