"""A gRPC server of raw bytes, with every kind of call. Arguments: certificate and key, or nothing for plain text."""

import sys
import time
from concurrent import futures

import grpc


def echo(request, context):
    seen = dict(context.invocation_metadata())
    context.send_initial_metadata((("x-first", seen.get("x-ask", "")), ("x-first-bin", b"\x00\xff\n")))
    context.set_trailing_metadata((("x-last", seen.get("x-ask", "")), ("x-last-bin", b"\xfe\x01")))
    return request


def count(request, context):
    for number in range(int(request)):
        yield b"%d" % number


def total(requests, context):
    return b"%d" % sum(len(request) for request in requests)


def talk(requests, context):
    for request in requests:
        yield request.upper()


def fail(request, context):
    context.set_trailing_metadata((("grpc-status-details-bin", b"\x08\x05details"),))
    context.abort(grpc.StatusCode.NOT_FOUND, "no such th\u00efng")


def fail_late(request, context):
    yield b"one"
    context.abort(grpc.StatusCode.DATA_LOSS, "half")


def hang(request, context):
    gone = []
    if not context.add_callback(lambda: gone.append(True)):
        gone.append(True)
    print("hanging", flush=True)
    while not gone:
        time.sleep(0.01)
    print("cancelled", flush=True)
    yield b"never"


class Handlers(grpc.GenericRpcHandler):
    kinds = {
        "Echo": grpc.unary_unary_rpc_method_handler(echo),
        "Count": grpc.unary_stream_rpc_method_handler(count),
        "Total": grpc.stream_unary_rpc_method_handler(total),
        "Talk": grpc.stream_stream_rpc_method_handler(talk),
        "Fail": grpc.unary_unary_rpc_method_handler(fail),
        "FailLate": grpc.unary_stream_rpc_method_handler(fail_late),
        "Hang": grpc.unary_stream_rpc_method_handler(hang),
    }

    def service(self, call):
        return self.kinds.get(call.method.rsplit("/", 1)[-1])


most = 64 * 1024 * 1024
server = grpc.server(
    futures.ThreadPoolExecutor(max_workers=16),
    handlers=[Handlers()],
    options=[("grpc.max_receive_message_length", most), ("grpc.max_send_message_length", most)],
)
if len(sys.argv) > 1:
    certificate, key = (open(path, "rb").read() for path in sys.argv[1:3])
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, certificate)]))
else:
    port = server.add_insecure_port("127.0.0.1:0")
server.start()
print("port", port, flush=True)
server.wait_for_termination()
