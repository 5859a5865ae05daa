"""An SSH server (asyncssh) that exchanges keys anew while a command runs. Arguments: mode, host key.

Modes: `same` keeps its host key, `other` shows another one of that type, `type` one of another type. Prints its port, then a line
for each line of standard input that comes after.
"""

import asyncio
import sys

import asyncssh

MODE, HOST_KEY = sys.argv[1:3]


class Server(asyncssh.SSHServer):
    def begin_auth(self, username):
        return False


async def handle(process):
    connection = process.channel.get_connection()
    process.stdout.write("before\n")
    # The client has heard that the command runs.
    await process.stdin.readline()
    if MODE != "same":
        kind = "ssh-ed25519" if MODE == "other" else "ssh-rsa"
        for pair in asyncssh.load_keypairs([asyncssh.generate_private_key(kind)]):
            algorithms = {algorithm: pair for algorithm in pair.host_key_algorithms}
        connection._server_host_keys = algorithms
        connection._server_host_key_algs = list(algorithms)
    # As if so much had been sent that keys are due; what is written waits behind the exchange.
    connection._rekey_bytes_sent = connection._rekey_bytes
    process.stdout.write("after\n")
    async for line in process.stdin:
        print("got", line.strip(), flush=True)
    print("end of input", flush=True)
    process.exit(0)


async def main():
    server = await asyncssh.create_server(
        Server, "127.0.0.1", 0, server_host_keys=[HOST_KEY], process_factory=handle
    )
    print(server.get_port(), flush=True)
    await asyncio.sleep(3600)


asyncio.run(main())
