"""The cipher of pages between hosts: records of AES-128-GCM (RFC 5116), with keys of one connection alone.

HKDF-SHA256 (RFC 5869) makes a secret for each direction, from the key of the cluster, what both ends have
agreed on by X25519 (RFC 7748), and both nonces. So a recording of the connection is of no use to whoever gets
the key of the cluster later.

    record   length of the text (4 bytes, little-endian), the encrypted text, its tag (16 bytes)

The nonce of a record is its number under its key: a record that is changed, replayed, left out or moved does
not fit its tag. After ROTATION_BYTES a direction has the next key, made of its secret, and forgets the one
before, as TLS 1.3 does (RFC 8446, 7.2). That is 2^30 blocks of AES, far below the bounds of GCM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from firelane.errors import PeerLostError

RECORD_BYTES = 512 << 10
"""Bytes of the text of one record, at most: it stays in a core's cache between the cipher and the socket, and
there are few records to a page."""
ROTATION_BYTES = 16 << 30
HEAD_BYTES, TAG_BYTES, NONCE_BYTES = 4, 16, 12
SECRET_BYTES, KEY_BYTES = 32, 16


class KeyExchange:
    """One end's part of the agreement on keys. share: what the other end gets to know."""

    def __init__(self) -> None:
        self._private = X25519PrivateKey.generate()
        self.share = self._private.public_key().public_bytes_raw()

    def records(self, side: str, key: bytes, theirs: bytes, nonces: bytes) -> CipherRecords:
        """side: "source" or "reader", this end's. key: of the cluster. theirs: the other end's share. nonces:
        the source's, then the reader's. Raises PeerLostError."""
        try:
            agreed = self._private.exchange(X25519PublicKey.from_public_bytes(theirs))
        except ValueError as error:
            raise PeerLostError("its share of the cipher's key is none") from error
        other = {"source": "reader", "reader": "source"}[side]
        own, others = (_secret(key + agreed, nonces, sender) for sender in (side, other))
        return CipherRecords(Keys(own, ROTATION_BYTES), Keys(others, ROTATION_BYTES))


class Keys:
    """The keys of one direction, one after the other. rotation_bytes: text under one key, at most."""

    def __init__(self, secret: bytes, rotation_bytes: int) -> None:
        self._secret, self._rotation_bytes = secret, rotation_bytes
        self._start()

    def next(self, nbytes: int) -> tuple[AESGCM, bytes]:
        """Cipher and nonce of the next record, whose text has so many bytes."""
        if self._number and self._nbytes + nbytes > self._rotation_bytes:
            self._secret = _expanded(self._secret, "next", SECRET_BYTES)
            self._start()
        self._nbytes += nbytes
        self._number += 1
        return self._cipher, self._number.to_bytes(NONCE_BYTES, "big")

    def _start(self) -> None:
        self._cipher = AESGCM(_expanded(self._secret, "key", KEY_BYTES))
        self._number = self._nbytes = 0


class CipherRecords:
    """Records of link.line under a cipher. One thread uses them."""

    def __init__(self, own: Keys, others: Keys) -> None:
        self._own, self._others = own, others
        self._sent = bytearray(HEAD_BYTES + RECORD_BYTES + TAG_BYTES)
        self._came = bytearray(RECORD_BYTES + TAG_BYTES)
        self._text = bytearray(RECORD_BYTES)
        self._left = memoryview(b"")
        """The rest of the last record's text: nobody has asked for it yet."""

    def sealed(self, data: memoryview) -> Iterator[memoryview]:
        """Data that changes meanwhile gives records that fit their tags: those are over what is encrypted."""
        for start in range(0, len(data), RECORD_BYTES):
            text = data[start : start + RECORD_BYTES]
            record = memoryview(self._sent)[: HEAD_BYTES + len(text) + TAG_BYTES]
            record[:HEAD_BYTES] = head = len(text).to_bytes(HEAD_BYTES, "little")
            cipher, nonce = self._own.next(len(text))
            cipher.encrypt_into(nonce, text, head, record[HEAD_BYTES:])
            yield record

    def open_into(self, view: memoryview, receive_into: Callable[[memoryview], None]) -> None:
        while view:
            if not self._left:
                nbytes = self._open(view, receive_into)
            else:
                nbytes = min(len(view), len(self._left))
                view[:nbytes] = self._left[:nbytes]
                self._left = self._left[nbytes:]
            view = view[nbytes:]

    def _open(self, view: memoryview, receive_into: Callable[[memoryview], None]) -> int:
        """The next record: to the view where it has room, and its length; else kept, and 0."""
        head = bytearray(HEAD_BYTES)
        receive_into(memoryview(head))
        nbytes = int.from_bytes(head, "little")
        if not 0 < nbytes <= RECORD_BYTES:
            raise PeerLostError(f"a record of {nbytes} bytes: it was altered on its way")
        came = memoryview(self._came)[: nbytes + TAG_BYTES]
        receive_into(came)
        fits = nbytes <= len(view)
        text = view[:nbytes] if fits else memoryview(self._text)[:nbytes]
        cipher, nonce = self._others.next(nbytes)
        try:
            cipher.decrypt_into(nonce, came, bytes(head), text)
        except InvalidTag as error:
            raise PeerLostError("a record was altered, replayed or left out on its way") from error
        self._left = text[:0] if fits else text
        return nbytes if fits else 0


def _secret(material: bytes, nonces: bytes, sender: str) -> bytes:
    info = f"firelane pages 2 {sender}".encode()
    return HKDF(algorithm=SHA256(), length=SECRET_BYTES, salt=nonces, info=info).derive(material)


def _expanded(secret: bytes, purpose: str, nbytes: int) -> bytes:
    return HKDFExpand(algorithm=SHA256(), length=nbytes, info=purpose.encode()).derive(secret)
