//! A check over UDP: one datagram, and the first answer to it.

use logic::health::{Cause, Check};
use proxy::connect::{self, ConnectFault};
use state::BackendState;
use tokio::net::UdpSocket;
use tokio::time::timeout_at;

use super::{Passed, Times};

/// More than the largest answer.
const ROOM: usize = 65_536;

/// Sends the question of a check, and waits for an answer to it. Other datagrams are passed over.
pub(super) async fn ask(backend: &BackendState, check: &Check, times: Times) -> Result<Passed, ConnectFault> {
    let socket = UdpSocket::from_std(connect::open_udp(backend)?).map_err(ConnectFault::Ours)?;
    let id = fastrand::u16(..);
    let question = match check {
        Check::Dns { name } => name.question(id),
        Check::Datagram { send, .. } => send.to_vec(),
        Check::Tcp | Check::Http { .. } => Vec::new(),
    };
    let is_answer = |datagram: &[u8]| match check {
        Check::Dns { name } => name.is_answered_by(id, datagram),
        Check::Datagram { expect, .. } => datagram.starts_with(expect),
        Check::Tcp | Check::Http { .. } => false,
    };
    let fault = |error: std::io::Error| {
        let text = error.to_string();
        connect::udp_cause(error).unwrap_or(Cause::ConnectFailed(text))
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
