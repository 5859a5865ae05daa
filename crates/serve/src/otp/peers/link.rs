//! Connections to another validation server, and the messages on them.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use access::otp::sync::{self, Known, State};
use bytes::Bytes;
use http::Request;
use http::header::HOST;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use state::lock::lock;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Time limit of one message.
const LIMIT: Duration = Duration::from_secs(5);

/// Largest answer in bytes.
const LARGEST: usize = 4096;

/// Connections that are kept.
const KEPT: usize = 32;

#[derive(Debug)]
pub(super) struct Link {
    address: SocketAddr,
    idle: Mutex<Vec<SendRequest<Empty<Bytes>>>>,
}

/// Why a server does not know something yet.
#[derive(Debug)]
pub(super) enum Untold {
    /// It does not answer, or takes no message at all.
    Away(String),
    /// It takes none about this token: it does not have it, or does not know the message.
    Refused(String),
}

fn away(error: impl ToString) -> Untold {
    Untold::Away(error.to_string())
}

impl Link {
    pub(super) fn new(address: SocketAddr) -> Self {
        Self { address, idle: Mutex::default() }
    }

    /// Tells the state of a token, and returns what the server knew of it before.
    pub(super) async fn tell(&self, state: &State, otp: &str) -> Result<Known, Untold> {
        match timeout(LIMIT, self.exchange(&state.request(otp))).await {
            Ok(answer) => answer,
            Err(_) => Err(Untold::Away(format!("no answer within {} s", LIMIT.as_secs()))),
        }
    }

    async fn exchange(&self, path: &str) -> Result<Known, Untold> {
        let request = || {
            let request = Request::get(path).header(HOST, self.address.to_string());
            request.body(Empty::new()).map_err(away)
        };
        // A connection that was kept may be closed by now: the message may be told twice.
        let idle = lock(&self.idle).pop();
        if let Some(mut kept) = idle
            && let Ok(state) = self.on(&mut kept, request()?).await
        {
            self.keep(kept);
            return Ok(state);
        }
        let tcp = TcpStream::connect(self.address).await.map_err(away)?;
        let _ = tcp.set_nodelay(true);
        let (mut sender, connection) = handshake(TokioIo::new(tcp)).await.map_err(away)?;
        // It ends with the sender.
        tokio::spawn(async move { drop(connection.await) });
        let state = self.on(&mut sender, request()?).await?;
        self.keep(sender);
        Ok(state)
    }

    async fn on(
        &self,
        sender: &mut SendRequest<Empty<Bytes>>,
        request: Request<Empty<Bytes>>,
    ) -> Result<Known, Untold> {
        sender.ready().await.map_err(away)?;
        let answer = sender.send_request(request).await.map_err(away)?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), LARGEST).collect().await.map_err(away)?;
        let text = String::from_utf8_lossy(&body.to_bytes()).into_owned();
        sync::read_answer(&text).ok_or_else(|| {
            let said =
                text.lines().find_map(|line| line.strip_prefix("status=")).unwrap_or("no status").trim();
            let why = format!("it refuses ({said}, HTTP {status})");
            match said {
                "BAD_OTP" | "MISSING_PARAMETER" => Untold::Refused(why),
                _ => Untold::Away(why),
            }
        })
    }

    fn keep(&self, sender: SendRequest<Empty<Bytes>>) {
        let mut idle = lock(&self.idle);
        if idle.len() < KEPT && !sender.is_closed() {
            idle.push(sender);
        }
    }
}
