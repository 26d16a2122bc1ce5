"""TLS as a web configuration asks for it."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import ssl
from typing import TYPE_CHECKING, Any

from .web_config import (
    CIPHER_SUITES,
    CURVES,
    REQUIRE_AND_VERIFY,
    VERIFY_IF_GIVEN,
    TlsSettings,
    WebConfigError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_VERIFY = {REQUIRE_AND_VERIFY: ssl.CERT_REQUIRED, VERIFY_IF_GIVEN: ssl.CERT_OPTIONAL}


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """Make what a server's connections are made with; reads the certificates now.

    Raises:
        WebConfigError: A certificate, key or CA cannot be read or used, or does not fit.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[settings.min_version]
    context.maximum_version = _VERSIONS[settings.max_version]
    # A client can ask for renegotiations without end, each of which costs the server more.
    context.options |= ssl.OP_NO_RENEGOTIATION
    if settings.prefer_server_cipher_suites:
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    else:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    suites = [CIPHER_SUITES[suite] for suite in settings.cipher_suites]
    before_13 = [suite for suite in suites if suite is not None]
    if before_13:
        context.set_ciphers(":".join(before_13))
    elif suites:
        # As with Go: suites of TLS 1.3 alone leave nothing for TLS 1.2.
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    if settings.curve is not None:
        context.set_ecdh_curve(CURVES[settings.curve])
    _load_certificate(context, settings)
    if settings.client_auth_type in _VERIFY:
        context.verify_mode = _VERIFY[settings.client_auth_type]
        _load_client_ca(context, settings)
    return context


def _load_certificate(context: ssl.SSLContext, settings: TlsSettings) -> None:
    shown = f"certificate {settings.cert_file or '(cert)'} with key {settings.key_file or '(key)'}"
    for file in (settings.cert_file, settings.key_file):
        if file is not None:
            _check_readable(file)
    with contextlib.ExitStack() as stack:
        certificate = settings.cert_file or stack.enter_context(_as_file(settings.cert or ""))
        key = settings.key_file or stack.enter_context(_as_file(settings.key or ""))
        try:
            # Without a password of ours, OpenSSL would ask for one on the terminal.
            context.load_cert_chain(certificate, key, password="")
        except (OSError, ValueError) as error:
            raise WebConfigError(f"{shown}: {_reason(error)}") from error


def _load_client_ca(context: ssl.SSLContext, settings: TlsSettings) -> None:
    file = settings.client_ca_file
    if file is not None:
        _check_readable(file)
    try:
        context.load_verify_locations(cafile=file, cadata=settings.client_ca)
    except (OSError, ValueError) as error:
        shown = file or "client_ca"
        raise WebConfigError(f"{shown}: no certificates in it: {_reason(error)}") from error


def _check_readable(file: str) -> None:
    try:
        with open(file, "rb") as opened:  # noqa: PTH123
            opened.read(1)
    except OSError as error:
        raise WebConfigError(f"{file}: {error.strerror}") from error


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return reason.lower().replace("_", " ") if reason else str(error)


@contextlib.contextmanager
def _as_file(text: str) -> Iterator[str]:
    """A path to a text that is in memory only: OpenSSL takes certificates from files."""
    descriptor = os.memfd_create("hamiregion-pem", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def has_allowed_name(certificate: Mapping[str, Any], allowed: tuple[str, ...]) -> bool:
    """Whether one of a client certificate's alternative names is allowed.

    Args:
        certificate: As ``SSLSocket.getpeercert`` gives it.
        allowed: DNS names, IP addresses, e-mail addresses and URIs, each compared as a whole.
    """
    names = {_normal(name) for _, name in certificate.get("subjectAltName", ())}
    return any(_normal(name) in names for name in allowed)


def _normal(name: str) -> str:
    try:
        return str(ipaddress.ip_address(name.strip()))
    except ValueError:
        return name
