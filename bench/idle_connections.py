#!/usr/bin/env python3
"""Holds idle keep-alive connections while other traffic goes on, and prints what each costs in memory.

  bench/idle_connections.py [CONNECTIONS]       9,000 unless said otherwise

Each connection makes one request, so that it is a real kept one, and then says nothing. h2load makes traffic beside
them. At the end every connection is asked again: all must still answer.
"""

import asyncio
import re
import resource
import subprocess
import sys

from front_door import FrontDoor, describe_machine, first_answer

REQUESTS = 50_000


async def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 9_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, max(soft, count * 2 + 500))
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if wanted < count + 200:
        sys.exit(f"{count} connections need {count + 200} descriptors, the limit is {wanted}: see ulimit -n")
    describe_machine()
    with FrontDoor() as door:
        # Traffic first: what every worker allocates once does not count for the idle ones.
        await traffic(door, 5_000)
        await settle()
        before = door.memory()
        # Several source addresses, so that ports of the loopback address do not run out.
        streams = []
        for start in range(0, count, 500):
            batch = [first_answer(door.address, (f"127.0.0.{2 + start // 500 % 200}", 0)) for _ in range(min(500, count - start))]
            streams += await asyncio.gather(*batch)
        await settle()
        held = door.memory()
        print(f"idle      {count} kept connections, {(held - before) / count:.0f} bytes each (PSS {before >> 10} -> {held >> 10} KiB)")
        summary = await traffic(door, REQUESTS)
        print(f"beside    {summary}")
        await settle()
        after = door.memory()
        print(f"after     {(after - before) / count:.0f} bytes each with the traffic's own memory (PSS {after >> 10} KiB)")
        alive = sum(await asyncio.gather(*(answers(*stream) for stream in streams)))
        print(f"alive     {alive} of {count} answer another request")
        for _, writer in streams:
            writer.close()
        if alive != count or " 0 failed" not in summary:
            sys.exit("FAILED")


async def answers(reader, writer):
    try:
        writer.write(b"GET / HTTP/1.1\r\nHost: bench\r\n\r\n")
        await asyncio.wait_for(reader.readuntil(b"hello"), 30)
        return True
    except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
        return False


async def traffic(door, requests):
    process = await asyncio.create_subprocess_exec(
        "h2load", "--h1", "-n", str(requests), "-c", "20", door.url(), stdout=subprocess.PIPE
    )
    out, _ = await process.communicate()
    text = out.decode()
    rate = re.search(r"finished in .*", text)[0]
    counted = re.search(r"^requests: .*", text, re.M)[0]
    return f"{counted}; {rate}"


async def settle():
    # The measured process has nothing to do; its allocator gives back what it will within this time.
    await asyncio.sleep(2)


asyncio.run(main())
