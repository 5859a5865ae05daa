//! A check over UDP: one datagram, and the first answer to it.

use logic::health::{Cause, Check};
use logic::proxy_header::{self, Version};
use proxy::connect::{self, ConnectFault};
use state::BackendState;
use tokio::net::UdpSocket;
use tokio::time::timeout_at;

use super::{Passed, Times, Way};

/// More than the largest answer.
const ROOM: usize = 65_536;

/// Sends the question of a check, and waits for an answer to it. Other datagrams are passed over.
pub(super) async fn ask(
    backend: &BackendState,
    check: &Check,
    way: &Way,
    times: Times,
) -> Result<Passed, ConnectFault> {
    let (socket, ..) = connect::open_udp(backend, way.outgoing)?;
    let socket = UdpSocket::from_std(socket).map_err(ConnectFault::Ours)?;
    let id = fastrand::u16(..);
    let mut question = Vec::new();
    if way.send_proxy == Some(Version::V2) {
        // The check is our own datagram, so the PROXY header names no client.
        proxy_header::write_local(Version::V2, &mut question);
    }
    match check {
        Check::Dns { name } => question.extend(name.question(id)),
        Check::Datagram { send, .. } => question.extend_from_slice(send),
        Check::Tcp | Check::Http { .. } => {}
    }
    let is_answer = |datagram: &[u8]| match check {
        Check::Dns { name } => name.is_answered_by(id, datagram),
        Check::Datagram { expect, .. } => datagram.starts_with(expect),
        Check::Tcp | Check::Http { .. } => false,
    };
    let fault = |error: std::io::Error| {
        let text = error.to_string();
        connect::udp_cause(&error).unwrap_or(Cause::ConnectFailed(text))
    };
    let mut is_wrong = false;
    let answered = async {
        socket.send(&question).await.map_err(fault)?;
        let mut room = vec![0; ROOM];
        loop {
            let length = socket.recv(&mut room).await.map_err(fault)?;
            if is_answer(&room[..length]) {
                return Ok(times.elapsed());
            }
            is_wrong = true;
        }
    };
    match timeout_at(times.deadline.into(), answered).await {
        Ok(result) => result.map_err(ConnectFault::Backend),
        Err(_) if is_wrong => Err(ConnectFault::Backend(Cause::WrongReply)),
        Err(_) => Err(ConnectFault::Backend(Cause::NoReply { after: times.whole })),
    }
}
