"""Prints an RSA key of 8,676 bits. Its primes are known to everyone (2^4423 - 1 and 2^4253 - 1): to look for two new ones
takes a minute. The format is OpenSSH's PROTOCOL.key."""

import base64
import struct


def string(data):
    return struct.pack(">I", len(data)) + data


def number(value):
    return string(value.to_bytes(value.bit_length() // 8 + 1, "big"))


p, q, e = 2**4423 - 1, 2**4253 - 1, 65537
n, d = p * q, pow(e, -1, (p - 1) * (q - 1))
public = string(b"ssh-rsa") + number(e) + number(n)
private = bytes(8) + string(b"ssh-rsa") + b"".join(map(number, (n, e, d, pow(q, -1, p), p, q))) + string(b"")
private += bytes(range(1, 1 + -len(private) % 8))
head = b"openssh-key-v1\0" + string(b"none") + string(b"none") + string(b"") + struct.pack(">I", 1)
print("-----BEGIN OPENSSH PRIVATE KEY-----")
print(base64.encodebytes(head + string(public) + string(private)).decode(), end="")
print("-----END OPENSSH PRIVATE KEY-----")
