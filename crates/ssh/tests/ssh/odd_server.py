"""An SSH server (asyncssh) that wants more than a key, or behaves oddly. Arguments: mode, authorized_keys, host key.

Prints its port, then a line for each question it asked and each answer it got.
"""

import asyncio
import sys

import asyncssh
from asyncssh import auth

MODE, AUTHORIZED, HOST_KEY = sys.argv[1:4]


class Server(asyncssh.SSHServer):
    def connection_made(self, connection):
        self.connection = connection
        self.questions = 0

    def begin_auth(self, username):
        if MODE == "banner":
            for _ in range(2000):
                self.connection.send_auth_banner("\x1b]0;owned\x07" + "x" * 1000)
        if MODE not in ("open", "not-strict"):
            if MODE != "questions-only":
                self.connection.set_authorized_keys(AUTHORIZED)
            return True
        return False

    def public_key_auth_supported(self):
        return MODE != "questions-only"

    def kbdint_auth_supported(self):
        return MODE in ("questions", "questions-only", "many-questions")

    def get_kbdint_challenge(self, username, lang, submethods):
        prompts = [("Code: ", False)] * (1000 if MODE == "many-questions" else 1)
        return "", "", "", prompts

    def validate_kbdint_response(self, username, responses):
        print("answered", ",".join(responses), flush=True)
        if MODE == "questions-only" and responses == ["again"]:
            return "", "", "", [("Once more: ", True)]
        return responses == ["123456"]


if MODE == "key-and-question":
    # A key first, then the answer to a question
    async def half(self):
        Server.public_key_auth_supported = lambda _: False
        self._conn._authorized_client_keys = None
        Server.kbdint_auth_supported = lambda _: True
        self._conn.send_userauth_failure(True)

    auth._ServerPublicKeyAuth.send_success = half

if MODE == "sign-again":
    # Says twice that it would take the key, and so has the client sign twice
    wanted = auth._ServerPublicKeyAuth.send_packet

    def twice(self, kind, *args, **kwargs):
        wanted(self, kind, *args, **kwargs)
        if kind == auth.MSG_USERAUTH_PK_OK:
            wanted(self, kind, *args, **kwargs)

    auth._ServerPublicKeyAuth.send_packet = twice
elif MODE == "silent":
    # Hears the question about the key, and never answers
    async def never(self, packet):
        print("silent", flush=True)
        await asyncio.sleep(3600)

    auth._ServerPublicKeyAuth._start = never


async def main():
    algorithms = {"signature_algs": ["rsa-sha2-256"]} if MODE == "sha-256" else {}
    if MODE == "not-strict":
        # As before December 2023
        asyncssh.connection.SSHServerConnection._get_extra_kex_algs = lambda _: []
        asyncssh.connection.SSHConnection._strict_kex = property(lambda _: False, lambda _, wanted: None)
        algorithms = {"encryption_algs": ["chacha20-poly1305@openssh.com"]}
    server = await asyncssh.create_server(
        Server, "127.0.0.1", 0, server_host_keys=[HOST_KEY], **algorithms
    )
    print(server.get_port(), flush=True)
    await asyncio.sleep(3600)


asyncio.run(main())
