"""Wav files built byte by byte, for tests of the reader."""

import struct


def chunk(name, body):
    return name + struct.pack("<L", len(body)) + body + b"\0" * (len(body) % 2)


def header(kind, channels, rate, bits, extensible=False):
    frame = channels * ((bits + 7) // 8)
    tag = 0xFFFE if extensible else kind
    body = struct.pack("<HHLLHH", tag, channels, rate, (rate * frame) % 2**32, frame % 2**16, bits)
    if extensible:  # size of the rest, valid bits, speakers, the format followed by the fixed part of its identifier
        body += struct.pack("<HHLH", 22, bits, 0, kind) + bytes.fromhex("000000001000800000aa00389b71")
    return chunk(b"fmt ", body)


def wav(data, kind=1, channels=1, rate=8000, bits=16, extensible=False, before=b""):
    body = b"WAVE" + before + header(kind, channels, rate, bits, extensible) + chunk(b"data", data)
    return b"RIFF" + struct.pack("<L", len(body)) + body


def whole(numbers, rate=8000):
    """16-bit samples of one channel."""
    return wav(struct.pack(f"<{len(numbers)}h", *numbers), rate=rate)
