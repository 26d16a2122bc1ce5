"""Certificates of the tests' own, made by openssl."""

from __future__ import annotations

import shutil
import ssl
from typing import TYPE_CHECKING

import attrs
import pytest

from support.process import finished

if TYPE_CHECKING:
    from pathlib import Path

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")


@attrs.frozen
class Authority:
    """Signs certificates; `certificate` is its own."""

    directory: Path

    @property
    def certificate(self) -> Path:
        return self.directory / "ca.crt"

    @classmethod
    def in_directory(cls, directory: Path) -> Authority:
        directory.mkdir(parents=True, exist_ok=True)
        authority = cls(directory)
        _openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
            "-keyout", directory / "ca.key", "-out", authority.certificate, "-days", "2",
            "-subj", "/CN=tests", "-addext", "keyUsage=critical,keyCertSign",
        )  # fmt: skip
        return authority

    def issue(self, name: str, *names: str) -> tuple[Path, Path]:
        """A certificate for alternative names such as ``IP:127.0.0.1``, and its key."""
        key, request = self.directory / f"{name}.key", self.directory / f"{name}.csr"
        certificate, extensions = self.directory / f"{name}.crt", self.directory / f"{name}.ext"
        extensions.write_text(
            "basicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth,clientAuth\n"
            f"subjectAltName={','.join(names) or 'DNS:' + name}\n"
        )
        _openssl(
            "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
            "-keyout", key, "-out", request, "-subj", f"/CN={name}",
        )  # fmt: skip
        _openssl(
            "x509", "-req", "-in", request, "-CA", self.certificate,
            "-CAkey", self.directory / "ca.key", "-CAcreateserial", "-out", certificate,
            "-days", "1", "-extfile", extensions,
        )  # fmt: skip
        return certificate, key

    def client(self, certificate: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """What a client needs that trusts this authority, with a certificate of its own or not."""
        context = ssl.create_default_context(cafile=self.certificate)
        if certificate is not None:
            context.load_cert_chain(*certificate)
        return context


def _openssl(*arguments: object) -> None:
    done = finished(["openssl", *map(str, arguments)])
    assert done.returncode == 0, done.stderr
