//! Answers of a name server that lies, over UDP and TCP on loopback. No signature is accepted that the key of the zone has not
//! made, and that key signs nothing here.
#![no_main]

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use access::keys::{Kind, Owner, Seen, Signature};
use dns::{Server, ZoneKeys};
use hickory_proto::dnssec::rdata::DNSKEY;
use hickory_proto::dnssec::{Algorithm, PublicKeyBuf};
use libfuzzer_sys::fuzz_target;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};
use tokio::runtime::Runtime;
use tokio::task::LocalSet;

/// The name server: what it answers next, and where it is.
struct Liar {
    runtime: Runtime,
    tasks: LocalSet,
    answer: Rc<RefCell<Vec<u8>>>,
    server: Server,
    keys: ZoneKeys,
}

thread_local! {
    static LIAR: RefCell<Liar> = RefCell::new(Liar::start());
}

impl Liar {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let tasks = LocalSet::new();
        let answer = Rc::new(RefCell::new(Vec::new()));
        let (udp, tcp) = runtime.block_on(async {
            loop {
                let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a socket");
                // A connection of another program may have the same port of TCP.
                if let Ok(tcp) = TcpListener::bind(udp.local_addr().expect("its address")).await {
                    break (udp, tcp);
                }
            }
        });
        let address: SocketAddr = udp.local_addr().expect("its address");
        let told = answer.clone();
        tasks.spawn_local(async move {
            let mut question = [0; 1500];
            while let Ok((length, from)) = udp.recv_from(&mut question).await {
                let _ = udp.send_to(&reply(&question[..length], &told.borrow().clone()), from).await;
            }
        });
        let told = answer.clone();
        tasks.spawn_local(async move {
            while let Ok((mut stream, _)) = tcp.accept().await {
                let Ok(length) = stream.read_u16().await else { continue };
                let mut question = vec![0; usize::from(length)];
                if stream.read_exact(&mut question).await.is_err() {
                    continue;
                }
                let reply = reply(&question, &told.borrow().clone());
                let length = u16::try_from(reply.len()).unwrap_or(u16::MAX);
                let _ =
                    stream.write_all(&[&length.to_be_bytes(), &reply[..usize::from(length)]].concat()).await;
            }
        });
        let key = PublicKeyBuf::new(vec![9; 64], Algorithm::ECDSAP256SHA256);
        Self {
            runtime,
            tasks,
            answer,
            server: Server { address: Ok(address), name: None },
            keys: ZoneKeys::Proved(vec![DNSKEY::with_flags(256, key)]),
        }
    }
}

/// The answer to a question: its identifier, and its question where the first byte of the input is odd, so that what is behind
/// is read.
fn reply(question: &[u8], input: &[u8]) -> Vec<u8> {
    let (Some((form, rest)), Some(identifier)) = (input.split_first(), question.get(..2)) else {
        return Vec::new();
    };
    if form % 2 == 0 {
        return [identifier, rest].concat();
    }
    // The question ends at the OPT record: a root label, its type, and what it has.
    let end = question.len().saturating_sub(11);
    let asked = question.get(12..end).unwrap_or_default();
    let flags = [0x84, form / 2 % 4];
    let counts = [0, 1, 0, 1 + form / 8 % 4, 0, 0, 0, 0];
    [identifier, &flags, &counts, asked, rest].concat()
}

fuzz_target!(|input: &[u8]| {
    LIAR.with_borrow(|liar| {
        *liar.answer.borrow_mut() = input.to_vec();
        let zone = Owner::parse("example.test").expect("a name");
        let owner = Owner::parse("_443._tcp.www.example.test").expect("a name");
        let seen = liar.tasks.block_on(&liar.runtime, liar.server.see(&zone, &owner, Kind::Tlsa, &liar.keys));
        if let Seen::Records { signature, .. } | Seen::Alias { signature, .. } = seen {
            assert!(matches!(signature, Signature::Absent | Signature::Wrong), "{signature:?}");
        }
    });
});
