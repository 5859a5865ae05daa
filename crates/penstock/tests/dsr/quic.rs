//! QUIC connections of clients whose address changes: aioquic on both sides.

use std::process::Stdio;

use testing::pki::{Time, self_signed};
use testing::tools::{self, Root};
use testing::{eventually, secs};

use super::network::{CLIENT, Network, Running, SERVERS, VIP, VIP6, config, host};

/// Answers each stream with its name. Its connection ids have its number behind one byte.
const SERVE: &str = r#"
import asyncio, os, sys, types
from aioquic.asyncio import serve
from aioquic.quic import connection
from aioquic.quic.configuration import QuicConfiguration
name, number, certificate, key, *addresses = sys.argv[1:]
LENGTH = 11
def random(length):
    data = os.urandom(length)
    return data[:1] + bytes.fromhex(number) + data[3:] if length == LENGTH else data
connection.os = types.SimpleNamespace(**{**vars(os), "urandom": random})
configuration = QuicConfiguration(is_client=False, alpn_protocols=["x"], connection_id_length=LENGTH)
configuration.load_cert_chain(certificate, key)
def answer(reader, writer):
    async def work():
        await reader.read()
        writer.write(name.encode())
        writer.write_eof()
    asyncio.ensure_future(work())
async def main():
    for address in addresses:
        await serve(address, 443, configuration=configuration, stream_handler=answer)
    print("ready", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"#;

/// Opens connections, asks each of them who it is, goes on from another port, and asks again: prints the answers.
const VISIT: &str = r#"
import asyncio, socket, ssl, sys
from aioquic.asyncio import connect
from aioquic.quic.configuration import QuicConfiguration
address, count, limit = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
async def ask(connection):
    async def once():
        reader, writer = await connection.create_stream()
        writer.write(b"who")
        writer.write_eof()
        return (await reader.read()).decode()
    try:
        return await asyncio.wait_for(once(), limit)
    except asyncio.TimeoutError:
        return "-"
async def visit():
    configuration = QuicConfiguration(alpn_protocols=["x"], verify_mode=ssl.CERT_NONE)
    async with connect(address, 443, configuration=configuration) as connection:
        before = await ask(connection)
        loop = asyncio.get_running_loop()
        # As the client's own one: of both families.
        other = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        other.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        other.bind(("::", 0))
        class Other(asyncio.DatagramProtocol):
            def datagram_received(self, data, peer):
                connection.datagram_received(data, peer)
        transport, _ = await loop.create_datagram_endpoint(Other, sock=other)
        connection._transport.close()
        connection._transport = transport
        return before, await ask(connection)
async def main():
    for before, after in await asyncio.gather(*[visit() for _ in range(count)]):
        print(before, after)
asyncio.run(main())
"#;

const VISITS: usize = 24;

/// Which servers the client has reached before and after its change. One that does not answer is waited for so many seconds.
fn visit(network: &Network, vip: &str, limit: &str) -> Vec<(String, String)> {
    let python = tools::python("aioquic");
    let count = VISITS.to_string();
    let said = network.run(CLIENT, &[python.to_str().unwrap(), "-c", VISIT, vip, &count, limit]);
    let pair = |line: &str| line.split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned()));
    said.lines().filter_map(pair).collect()
}

#[test]
fn a_quic_connection_keeps_its_server_when_the_address_of_its_client_changes() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let certificate = self_signed(network.directory.path(), "quic", &["video.example"], Time::Now);
    let python = tools::python("aioquic");
    let _servers = SERVERS.map(|server| {
        let (name, number) = (server.to_string(), format!("0a{server:02x}"));
        let files = [&certificate.certificate, &certificate.key].map(|path| path.to_str().unwrap());
        let words = [python.to_str().unwrap(), "-c", SERVE, &name, &number, files[0], files[1], VIP, VIP6];
        let mut command = network.command(server, &words);
        let running = Running(command.stdout(Stdio::null()).spawn().unwrap());
        eventually("it listens", secs(30), || {
            let sockets = network.run(server, &["ss", "-Hlnu", "sport", "=", ":443"]);
            (sockets.lines().count() == 2).then_some(())
        });
        running
    });
    let text = |path: &str, quic: &str| {
        let both = format!("[\"{VIP}:443\", \"{}:443\"]", host(VIP6));
        // It is for one address.
        let bind = if path == "xdp-generic" { format!("\"{VIP}:443\"") } else { both };
        let listener = format!("transport = \"udp\"\ndata-path = \"{path}\"\n{quic}");
        let text = config(&bind, &listener, "health = \"off\"");
        SERVERS.iter().fold(text, |text, server| {
            let ip = network.address(*server);
            let backend = format!("{{ address = \"{ip}:443\", quic-id = \"0a{server:02x}\" }}");
            text.replace(&format!("\"{ip}:80\""), &backend)
        })
    };
    let quic = "quic-id = { offset = 1, length = 2 }";
    for (path, vip) in [("af_packet", VIP), ("tc", VIP), ("tc", VIP6), ("xdp-generic", VIP)] {
        let server = network.balancer(&text(path, quic));
        super::wire::ready(&server);
        eventually(&format!("{path} {vip}: both serve, and every connection goes on"), secs(60), || {
            let all = visit(&network, vip, "40");
            let both = SERVERS.iter().all(|one| all.iter().any(|(before, _)| *before == one.to_string()));
            assert!(all.iter().all(|(before, after)| before == "-" || before == after), "{path}: {all:?}");
            (both && all.len() == VISITS && !all.iter().any(|(before, _)| before == "-")).then_some(())
        });
        if path == "af_packet" {
            // Without it they are new flows.
            let plain = text(path, "");
            server.write_config(&plain);
            assert!(server.ctl(&["reload"]).status.success());
            let all = visit(&network, vip, "4");
            assert!(all.iter().any(|(_, after)| after == "-"), "{all:?}");
        }
        super::paths::stop(server);
    }
}
