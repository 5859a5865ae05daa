"""An SSH server (paramiko) that runs commands in a thread each, without a session or a group of their own, and knows no signals.

Arguments: host key, authorized_keys. Prints its port.
"""

import socket
import subprocess
import sys
import threading

import paramiko

HOST_KEY, AUTHORIZED = sys.argv[1:3]
AUTHORIZED_KEYS = {line.split()[1] for line in open(AUTHORIZED, encoding="ascii") if line.strip()}


class Server(paramiko.ServerInterface):
    def get_allowed_auths(self, username):
        return "publickey"

    def check_auth_publickey(self, username, key):
        return paramiko.AUTH_SUCCESSFUL if key.get_base64() in AUTHORIZED_KEYS else paramiko.AUTH_FAILED

    def check_channel_request(self, kind, chanid):
        return paramiko.OPEN_SUCCEEDED if kind == "session" else paramiko.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED

    def check_channel_exec_request(self, channel, command):
        threading.Thread(target=run, args=(channel, command.decode()), daemon=True).start()
        return True


def run(channel, command):
    child = subprocess.Popen(["/bin/sh", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def feed():
        while piece := channel.recv(4096):
            try:
                child.stdin.write(piece)
                child.stdin.flush()
            except BrokenPipeError:
                break
        child.stdin.close()

    def show(stream, send):
        while piece := stream.read1(4096):
            try:
                send(piece)
            except OSError:
                pass

    threading.Thread(target=feed, daemon=True).start()
    shows = [
        threading.Thread(target=show, args=pair, daemon=True)
        for pair in ((child.stdout, channel.sendall), (child.stderr, channel.sendall_stderr))
    ]
    for one in shows:
        one.start()
    status = child.wait()
    for one in shows:
        one.join()
    channel.send_exit_status(status if status >= 0 else 128 - status)
    channel.close()


listener = socket.create_server(("127.0.0.1", 0), backlog=64)
print(listener.getsockname()[1], flush=True)
transports = []
while True:
    client, _ = listener.accept()
    transport = paramiko.Transport(client)
    transport.add_server_key(paramiko.Ed25519Key(filename=HOST_KEY))
    transport.set_subsystem_handler("sftp", paramiko.SFTPServer)
    try:
        transport.start_server(server=Server())
    except (paramiko.SSHException, EOFError):
        continue
    transports.append(transport)
