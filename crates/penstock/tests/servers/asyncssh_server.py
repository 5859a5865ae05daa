"""An SSH server (asyncssh) that runs commands as its documentation shows: without a session or a group of their own.

Arguments: host key, authorized_keys. Prints its port.
"""

import asyncio
import os
import subprocess
import sys

import asyncssh

HOST_KEY, AUTHORIZED = sys.argv[1:3]
COMMANDS = set()


class Popen(subprocess.Popen):
    """Knows the number of a command before anything else runs here."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        COMMANDS.add(self.pid)


subprocess.Popen = Popen


async def serve(process):
    command = await asyncio.create_subprocess_exec(
        "/bin/sh", "-c", process.command,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )
    feeding = asyncio.create_task(feed(process, command.stdin))
    await asyncio.gather(show(command.stdout, process.stdout), show(command.stderr, process.stderr))
    status = await command.wait()
    COMMANDS.discard(command.pid)
    feeding.cancel()
    if status >= 0:
        process.exit(status)
    else:
        process.exit_with_signal({15: "TERM", 9: "KILL", 2: "INT"}.get(-status, "HUP"))


async def feed(process, into):
    try:
        while piece := await process.stdin.read(4096):
            into.write(piece)
            await into.drain()
    except (ConnectionError, asyncssh.Error):
        pass
    into.close()


async def show(stream, to):
    try:
        while piece := await stream.read(4096):
            to.write(piece)
            await to.drain()
    except (ConnectionError, asyncssh.Error, OSError):
        while await stream.read(4096):
            pass


class Server(asyncssh.SSHServer):
    def connection_made(self, connection):
        self.connection = connection

    def begin_auth(self, _):
        self.connection.set_authorized_keys(AUTHORIZED)
        return True


async def main():
    server = await asyncssh.create_server(
        Server, "127.0.0.1", 0, server_host_keys=[HOST_KEY], process_factory=serve, encoding=None,
        sftp_factory=True,
    )
    print(server.get_port(), flush=True)
    if os.getpid() == 1:
        asyncio.get_running_loop().create_task(reap())
    await asyncio.Event().wait()


async def reap():
    """As init it is the parent of every orphan. For commands asyncio waits: it could not tell how they ended otherwise."""
    while True:
        await asyncio.sleep(0.2)
        for entry in os.listdir("/proc"):
            if entry.isdigit() and entry != "1" and int(entry) not in COMMANDS:
                try:
                    os.waitpid(int(entry), os.WNOHANG)
                except ChildProcessError:
                    pass


asyncio.run(main())
