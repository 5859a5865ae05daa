"""Makes every kind of call, and prints what came of each as a line of JSON. Arguments: address, and an authority for TLS."""

import json
import sys
import threading

import grpc

most = 64 * 1024 * 1024
options = [("grpc.max_receive_message_length", most), ("grpc.max_send_message_length", most), ("grpc.enable_retries", 0)]
if len(sys.argv) > 2:
    options.append(("grpc.ssl_target_name_override", sys.argv[3]))
    credentials = grpc.ssl_channel_credentials(open(sys.argv[2], "rb").read())
    channel = grpc.secure_channel(sys.argv[1], credentials, options)
else:
    channel = grpc.insecure_channel(sys.argv[1], options)
LIMIT = 30


def say(name, **result):
    print(json.dumps({"call": name, **result}), flush=True)


def error(problem):
    details = dict(problem.trailing_metadata() or ()).get("grpc-status-details-bin", b"")
    return {"code": problem.code().name, "details": problem.details(), "more": list(details)}


unary = lambda method: channel.unary_unary(f"/test.Echo/{method}")
streams = lambda method: channel.unary_stream(f"/test.Echo/{method}")

answer, call = unary("Echo").with_call(b"hello", timeout=LIMIT, metadata=(("x-ask", "why"),))
say(
    "unary",
    answer=answer.decode(),
    first={key: list(value) if isinstance(value, bytes) else value for key, value in call.initial_metadata()},
    last={key: list(value) if isinstance(value, bytes) else value for key, value in call.trailing_metadata()},
    code=call.code().name,
)
say("empty", answer=len(unary("Echo")(b"", timeout=LIMIT)))
large = bytes(range(256)) * 4 * 1024 * 10
say("large", whole=unary("Echo")(large, timeout=LIMIT) == large)
say("server-stream", answers=[int(item) for item in streams("Count")(b"1000", timeout=LIMIT)] == list(range(1000)))
parts = (b"x" * size for size in [1, 10, 100_000, 0, 5])
say("client-stream", answer=int(channel.stream_unary("/test.Echo/Total")(parts, timeout=LIMIT)))

# Each message is sent only after the answer to the one before it: neither side may wait for the other's end.
heard = threading.Semaphore(0)


def questions():
    for number in range(20):
        yield b"message %d" % number
        if not heard.acquire(timeout=10):
            return


talked = []
for item in channel.stream_stream("/test.Echo/Talk")(questions(), timeout=LIMIT):
    talked.append(item.decode())
    heard.release()
say("bidi", answers=talked == ["MESSAGE %d" % number for number in range(20)], count=len(talked))

try:
    unary("Fail")(b"", timeout=LIMIT)
except grpc.RpcError as problem:
    say("error", **error(problem))
got = []
try:
    for item in streams("FailLate")(b"", timeout=LIMIT):
        got.append(item.decode())
except grpc.RpcError as problem:
    say("late-error", got=got, **error(problem))
try:
    unary("Nothing")(b"", timeout=LIMIT)
except grpc.RpcError as problem:
    say("unknown", **error(problem))
try:
    list(streams("Hang")(b"", timeout=5))
except grpc.RpcError as problem:
    say("deadline", code=problem.code().name)
call = streams("Hang")(b"", timeout=LIMIT)
timer = threading.Timer(5, call.cancel)
timer.start()
try:
    list(call)
except grpc.RpcError as problem:
    say("cancel", code=problem.code().name)
say("after", answer=unary("Echo")(b"still here", timeout=LIMIT).decode())
