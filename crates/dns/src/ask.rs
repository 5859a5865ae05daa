//! One question to one server. Over UDP; over TCP if the answer is truncated or does not come.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use hickory_proto::op::{Edns, Message, Query};
use hickory_proto::rr::{Name, RecordType};
use thiserror::Error;
use tokio::net::UdpSocket;

use crate::signed;

/// Reason why there is no answer.
#[derive(Debug, Error)]
pub enum Silence {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("no answer within {} s, over UDP and TCP", .0.as_secs())]
    TimedOut(Duration),
    #[error("its answer is malformed: {0}")]
    Malformed(String),
    #[error("its answer is for another question")]
    OtherQuestion,
    #[error("its answer is cut off (TC), over TCP too")]
    CutOff,
    #[error("the name of the server has no address: {0}")]
    NoAddress(String),
}

/// Time limit of one question with its answer over UDP.
const UDP_LIMIT: Duration = Duration::from_secs(1);
/// Time limit over TCP, after UDP.
const TCP_LIMIT: Duration = Duration::from_secs(4);
/// A datagram gets lost now and then.
const UDP_TRIES: usize = 2;
/// Answers over UDP that fit into one packet on every path (DNS flag day 2020).
const PAYLOAD: u16 = 1232;

/// Asks without recursion, and for signatures.
pub(crate) async fn ask(server: SocketAddr, name: &Name, kind: RecordType) -> Result<Message, Silence> {
    let mut message = Message::query();
    message.metadata.recursion_desired = false;
    message.add_query(Query::query(name.clone(), kind));
    let mut edns = Edns::new();
    edns.set_max_payload(PAYLOAD).set_version(0).set_dnssec_ok(true);
    message.set_edns(edns);
    let bytes = message.to_vec().map_err(|error| Silence::Malformed(error.to_string()))?;
    let mut refused = None;
    for _ in 0..UDP_TRIES {
        match tokio::time::timeout(UDP_LIMIT, datagram(server, &bytes)).await {
            Ok(Ok(answer)) => {
                // What cannot be used may be of a machine that guessed the identifier: over TCP it has to be on the path.
                match read(&answer, &message) {
                    Ok(answer) if !answer.metadata.truncation => return Ok(answer),
                    _ => break,
                }
            }
            Ok(Err(error)) => refused = Some(error),
            Err(_) => {}
        }
    }
    match tokio::time::timeout(TCP_LIMIT, signed::send(server, &bytes)).await {
        Ok(Ok(answer)) => match read(&answer, &message)? {
            answer if answer.metadata.truncation => Err(Silence::CutOff),
            answer => Ok(answer),
        },
        Ok(Err(error)) => Err(Silence::Io(refused.unwrap_or(error))),
        Err(_) => Err(Silence::TimedOut(UDP_LIMIT * UDP_TRIES as u32 + TCP_LIMIT)),
    }
}

/// Sends a datagram and waits for one with the same identifier.
async fn datagram(server: SocketAddr, message: &[u8]) -> io::Result<Vec<u8>> {
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(message).await?;
    let mut buffer = vec![0; 4096];
    loop {
        let length = socket.recv(&mut buffer).await?;
        // An attacker who guesses the port must guess the identifier too.
        if buffer.get(..2) == message.get(..2) {
            buffer.truncate(length);
            return Ok(buffer);
        }
    }
}

fn read(answer: &[u8], question: &Message) -> Result<Message, Silence> {
    let parsed = Message::from_vec(answer).map_err(|error| Silence::Malformed(error.to_string()))?;
    let same = |one: &Query, other: &Query| one.name == other.name && one.query_type == other.query_type;
    let is_same = match (parsed.queries.first(), question.queries.first()) {
        (Some(one), Some(other)) => same(one, other),
        // A refusal may have no question in it.
        (None, _) => parsed.answers.is_empty(),
        _ => false,
    };
    if parsed.metadata.id != question.metadata.id || !is_same {
        return Err(Silence::OtherQuestion);
    }
    Ok(parsed)
}
