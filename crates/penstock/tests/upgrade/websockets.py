"""WebSockets by another implementation: an echo server, and clients that do a second part when they get SIGUSR1.

Arguments: `serve`, or one of the other modes and the URL.
"""
import asyncio
import hashlib
import random
import signal
import ssl
import struct
import sys

import websockets

MODE, *REST = sys.argv[1:]
go_on = asyncio.Event()


def say(*words):
    print(*words, flush=True)


def connect(compression):
    context = None
    if REST[0].startswith("wss:"):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return websockets.connect(
        REST[0], compression=compression, max_size=None, ping_interval=None, proxy=None, ssl=context, close_timeout=20
    )


async def serve():
    async def echo(ws):
        try:
            while True:
                message = await ws.recv()
                if message == "close":
                    await ws.close(4001, "enough")
                await ws.send(message)
        except websockets.ConnectionClosed:
            say("server heard", ws.close_code, ws.close_reason)

    async with websockets.serve(echo, "127.0.0.1", 0, max_size=None, ping_interval=None) as server:
        say("port", server.sockets[0].getsockname()[1])
        await asyncio.get_running_loop().create_future()


async def stream():
    """Messages of every size on some connections, whole and in fragments, until the signal. Checks all that comes back."""

    async def one(number):
        numbers = random.Random(number)
        sent, heard = hashlib.sha256(), hashlib.sha256()
        on_the_way = asyncio.Semaphore(16)
        async with connect("deflate" if number % 2 else None) as ws:

            async def send():
                count = 0
                while not go_on.is_set():
                    await on_the_way.acquire()
                    message = numbers.randbytes(numbers.choice([0, 1, 125, 126, 5000, 65536, 200_000]))
                    sent.update(struct.pack(">Q", len(message)) + message)
                    half = len(message) // 2
                    await ws.send([message[:half], message[half:]] if count % 3 == 2 else message)
                    count += 1
                await ws.send("end")
                return count

            async def hear():
                count = 0
                while (message := await ws.recv()) != "end":
                    heard.update(struct.pack(">Q", len(message)) + message)
                    count += 1
                    on_the_way.release()
                    say("progress")
                return count

            counts = await asyncio.gather(send(), hear())
            assert counts[0] == counts[1] and sent.digest() == heard.digest(), (number, counts)
            return counts[0]

    counts = await asyncio.gather(*map(one, range(4)))
    say("all", sum(counts), "came back")


async def fragments():
    """A compressed message of which a part is on its way when the signal comes."""
    parts = [random.Random(part).randbytes(200_000) + b"x" * 200_000 for part in range(3)]
    async with connect("deflate") as ws:
        assert "permessage-deflate" in ws.response.headers["Sec-WebSocket-Extensions"]
        await ws.send("before")
        assert await ws.recv() == "before"

        async def pieces():
            yield parts[0]
            yield parts[1]
            say("a part is sent")
            await go_on.wait()
            yield parts[2]

        await ws.send(pieces())
        assert await ws.recv() == b"".join(parts)
        say("the whole message came back")


async def closes():
    async with connect(None) as ws:
        await ws.send("before")
        assert await ws.recv() == "before"
        say("open")
        await go_on.wait()
        if MODE == "client-closes":
            await ws.close(4002, "bye")
        elif MODE == "server-closes":
            await ws.send("close")
            try:
                await ws.recv()
            except websockets.ConnectionClosed:
                pass
        else:
            await ws.send("after")
            assert await ws.recv() == "after"
            say("after")
        say("client heard", ws.close_code, ws.close_reason)


async def main():
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, go_on.set)
    await {"serve": serve, "stream": stream, "fragments": fragments}.get(MODE, closes)()


asyncio.run(main())
