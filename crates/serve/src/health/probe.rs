//! One check of one backend, with one time limit: connects and, for HTTP, sends a request and reads the status. A check
//! over UDP sends a datagram and waits for its answer.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use config::types::{ActiveCheck, BackendAddress, BackendHttp};
use hosts::tunnel::plan;
use logic::health::{Cause, Check, CheckMethod, Source, StatusRange, Verdict, VerdictOutcome};
use logic::http1::request::{Limits, MethodKind, Parse, RequestKind, UpgradeWish};
use logic::http1::response::{self, Progress};
use logic::peers::Peer;
use logic::proxy_header::{self, Additions};
use nix::errno::Errno;
use proxy::connect::{self, ConnectFault, Link};
use state::BackendState;
use sys::socket::Outgoing;
use tls::backend::Endpoint;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout_at;

mod datagram;
mod http2;

/// Largest number of bytes read from an answer.
const ANSWER_LIMIT: usize = 16 * 1024;

/// Time for reading an answer after its head: to the application, an immediate close would look like a broken client.
const TAIL_LIMIT: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(super) enum Finding {
    Verdict(Verdict),
    /// No verdict: the backend's name has no address yet.
    NoAddress,
    /// No verdict: this process lacks descriptors or memory, which is not the backend's fault.
    OurOwnFault(io::Error),
}

/// Connection settings of a check, the same as for traffic.
#[derive(Clone)]
pub(super) struct Way {
    pub(super) send_proxy: Option<proxy_header::Version>,
    pub(super) tls: Option<Arc<Endpoint>>,
    pub(super) outgoing: Outgoing,
    pub(super) http: BackendHttp,
}

pub(super) async fn run(backend: &BackendState, active: &ActiveCheck, way: &Way) -> Finding {
    let start = Instant::now();
    let limits = Times { deadline: start + active.rule.timeout, whole: active.rule.timeout };
    let is_name = matches!(backend.address, BackendAddress::Name { .. } | BackendAddress::Dns(_));
    if is_name && backend.addresses.load().is_empty() {
        return Finding::NoAddress;
    }
    let result = match &active.check {
        Check::Tcp | Check::Http { .. } => connect_and_ask(backend, active, way, limits).await,
        Check::Dns { .. } | Check::Datagram { .. } => {
            datagram::ask(backend, &active.check, way, limits).await
        }
    };
    let (outcome, cause, took) = match result {
        Ok(took) => (VerdictOutcome::Pass, Cause::Passed, took),
        Err(ConnectFault::Backend(cause)) => (VerdictOutcome::Fail, cause, start.elapsed()),
        Err(ConnectFault::Ours(error)) => return Finding::OurOwnFault(error),
        Err(ConnectFault::NoDescriptors(_)) => return Finding::OurOwnFault(Errno::EMFILE.into()),
    };
    Finding::Verdict(Verdict { at: SystemTime::now(), source: Source::Probe, outcome, cause, took })
}

async fn connect_and_ask(
    backend: &BackendState,
    active: &ActiveCheck,
    way: &Way,
    limits: Times,
) -> Result<Passed, ConnectFault> {
    let mut header = Vec::new();
    if let Some(version) = way.send_proxy {
        // The check is our own connection, so the PROXY header names no client.
        proxy_header::write(version, &mut header, &Peer::Unix, &Peer::Unix, &Additions::default());
    }
    let opening = sys::socket::Opening::TheyMaySpeak;
    let (tls, time) = (way.tls.as_ref(), connect::TimeLimit::from_now(active.rule.timeout));
    let link = connect::establish(backend, tls, way.outgoing, opening, &header, time).await?;
    exchange(link, &backend.address, active, way.http, limits).await.map_err(ConnectFault::Backend)
}

#[derive(Clone, Copy)]
struct Times {
    deadline: Instant,
    whole: Duration,
}

/// Time until the result of the check was known.
type Passed = Duration;

async fn exchange(
    mut link: Link,
    backend: &BackendAddress,
    active: &ActiveCheck,
    http: BackendHttp,
    times: Times,
) -> Result<Passed, Cause> {
    let no_answer = || Cause::NoAnswer { after: times.whole };
    let (path, host, method, expect) = match &active.check {
        // A TCP check passes when the connection opens. `datagram` makes the others.
        Check::Tcp | Check::Dns { .. } | Check::Datagram { .. } => return Ok(times.elapsed()),
        Check::Http { path, host, method, expect } => (path, host, *method, *expect),
    };
    let own_host = host_of(backend);
    let host = host.as_deref().unwrap_or(&own_host);
    if http == BackendHttp::Http2 {
        let answer = timeout_at(times.deadline.into(), http2::ask(link, method, path, host)).await;
        judge(answer.map_err(|_| no_answer())??, expect)?;
        return Ok(times.elapsed());
    }
    let question = method.request(path, host);
    let answer = timeout_at(times.deadline.into(), ask(&mut link, question.as_bytes(), method)).await;
    let status = answer.map_err(|_| no_answer())??;
    let took = times.elapsed();
    let tail_end = times.deadline.min(Instant::now() + TAIL_LIMIT);
    let _ = timeout_at(tail_end.into(), discard(&mut link)).await;
    judge(status, expect)?;
    Ok(took)
}

impl Times {
    fn elapsed(self) -> Duration {
        self.whole.saturating_sub(self.deadline.saturating_duration_since(Instant::now()))
    }
}

fn judge(status: u16, expect: StatusRange) -> Result<(), Cause> {
    if expect.contains(status) { Ok(()) } else { Err(Cause::HttpStatus(status)) }
}

/// Sends the request and returns the status of the final (not 1xx) answer.
async fn ask<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    question: &[u8],
    method: CheckMethod,
) -> Result<u16, Cause> {
    let kind = RequestKind {
        method: if method == CheckMethod::Head { MethodKind::Head } else { MethodKind::Other },
        upgrade: UpgradeWish::NotAsked,
    };
    let limits = Limits { head: ANSWER_LIMIT, ..Limits::default() };
    // A write error is ignored: the backend may answer and close before it reads the request.
    let _ = stream.write_all(question).await;
    let (mut answer, mut progress, mut total) = (Vec::with_capacity(1024), Progress::default(), 0);
    loop {
        let some = (&mut *stream).take((ANSWER_LIMIT - total) as u64).read_buf(&mut answer).await;
        let some = some.map_err(|_| Cause::ClosedEarly)?;
        total += some;
        loop {
            match response::resume(&answer, &mut progress, &limits, kind) {
                Ok(Parse::Complete(head)) if head.is_interim() => {
                    answer.drain(..head.len);
                    progress = Progress::default();
                }
                Ok(Parse::Complete(head)) => return Ok(head.status),
                Ok(Parse::Incomplete) => break,
                Err(_) if answer.first() == Some(&TLS_ALERT) => {
                    return Err(Cause::BadResponse("the backend expects TLS".to_owned()));
                }
                Err(fault) => return Err(Cause::BadResponse(fault.to_string())),
            }
        }
        if total == ANSWER_LIMIT {
            return Err(Cause::BadResponse("no final answer within 16 KiB".to_owned()));
        }
        if some == 0 {
            return Err(Cause::ClosedEarly);
        }
    }
}

/// Content type of a TLS alert record (RFC 8446 section 5.1), with which a TLS server answers plain HTTP.
const TLS_ALERT: u8 = 0x15;

async fn discard<S: AsyncRead + Unpin>(stream: &mut S) {
    let mut buffer = [0; 1024];
    for _ in 0..ANSWER_LIMIT / buffer.len() {
        if !matches!(stream.read(&mut buffer).await, Ok(some) if some > 0) {
            return;
        }
    }
}

/// The default `Host` of a check.
fn host_of(address: &BackendAddress) -> String {
    match address {
        BackendAddress::Ip(address) if address.port() == 80 && address.is_ipv6() => {
            format!("[{}]", address.ip())
        }
        BackendAddress::Ip(address) if address.port() == 80 => address.ip().to_string(),
        BackendAddress::Name { host, port: 80 } => host.clone(),
        BackendAddress::Ip(_) | BackendAddress::Name { .. } => address.to_string(),
        BackendAddress::Discovered { name, address } if address.port() == 80 => name.host().to_owned(),
        BackendAddress::Discovered { name, address } => format!("{}:{}", name.host(), address.port()),
        BackendAddress::Dns(name) => name.host().to_owned(),
        BackendAddress::Unix(_) | BackendAddress::Ssh { connect: plan::Endpoint::Unix(_), .. } => {
            "localhost".to_owned()
        }
        BackendAddress::Ssh { connect, .. } => connect.to_string(),
    }
}

#[cfg(test)]
mod tests;
