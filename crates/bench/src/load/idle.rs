//! Connections that are held and do nothing: what do they cost in memory?

use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use super::http::Stream;
use super::tcp::{self, Conversation};
use super::tls::{Client, Connector};
use super::{Gauge, http};
use crate::address::Address;
use crate::meter;

/// Opens connections, uses each of them once, and holds them. It does all of its work before the window, which may
/// have no length, and gives figures in bytes: [`GROWTH`], [`BEFORE_REST`] and [`ALL`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Load {
    /// Where the server is.
    pub server: Address,
    /// How many.
    pub connections: usize,
    /// How each is used once.
    pub talk: Talk,
    /// How long they do nothing before the memory is read.
    pub rest: Duration,
    /// Speak TLS.
    pub tls: Option<Client>,
    /// Whose memory is read: the root of a process tree.
    pub holder: i32,
}

/// How a connection is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Talk {
    /// A question and an answer of 100 bytes: see [`Conversation::Kept`].
    Bytes,
    /// A GET request.
    Http,
}

/// Figure: by how much the holder's memory grew, for each connection.
pub const GROWTH: &str = "memory-growth";

/// Figure: the same, before they rest.
pub const BEFORE_REST: &str = "memory-before-rest";

/// Figure: all of the holder's memory, divided by the connections: what it reserved before is part of it.
pub const ALL: &str = "memory-all";

/// With fewer, what a process allocates in one piece hides what a connection costs, or makes it seem to cost nothing.
pub const LEAST: usize = 500;

impl Load {
    /// Does it all.
    pub async fn start(&self, gauge: &Rc<Gauge>) -> io::Result<()> {
        if self.connections < LEAST {
            return Err(io::Error::other(format!(
                "{} connections are too few to tell their memory from the rest: the limit of open descriptors must be \
                 higher (ulimit -n)",
                self.connections
            )));
        }
        let tls = self.tls.as_ref().map(Client::connector).transpose()?.map(Rc::new);
        // The first connections make a server allocate what it keeps for all of them.
        drop(self.open(tls.as_ref(), FIRST).await?);
        let before = self.settled().await?;
        let held = self.open(tls.as_ref(), self.connections).await?;
        let at_once = self.settled().await?;
        let after = match self.rest {
            Duration::ZERO => at_once,
            rest => {
                tokio::time::sleep(rest).await;
                self.settled().await?
            }
        };
        let each = |bytes: u64| bytes as f64 / held.len().max(1) as f64;
        gauge.figure(GROWTH, each(after.saturating_sub(before)));
        gauge.figure(BEFORE_REST, each(at_once.saturating_sub(before)));
        gauge.figure(ALL, each(after));
        Ok(())
    }

    async fn open(&self, tls: Option<&Rc<Connector>>, count: usize) -> io::Result<Vec<Stream>> {
        let mut tasks = JoinSet::new();
        for number in 0..AT_ONCE {
            let (load, tls) = (self.clone(), tls.cloned());
            let share = (number..count).step_by(AT_ONCE).count();
            tasks.spawn_local(async move {
                let mut streams = Vec::with_capacity(share);
                for _ in 0..share {
                    streams.push(load.open_one(tls.as_deref()).await?);
                }
                io::Result::Ok(streams)
            });
        }
        let mut held = Vec::with_capacity(count);
        while let Some(result) = tasks.join_next().await {
            held.extend(result.map_err(io::Error::other)??);
        }
        Ok(held)
    }

    async fn open_one(&self, tls: Option<&Connector>) -> io::Result<Stream> {
        let mut stream = http::connect(&self.server, tls).await?;
        match self.talk {
            Talk::Bytes => tcp::exchange(&mut stream, Conversation::Kept).await?,
            Talk::Http => http::get_once(&mut stream).await?,
        }
        Ok(stream)
    }

    /// Memory of the holder, as soon as it does not change any more.
    async fn settled(&self) -> io::Result<u64> {
        let start = Instant::now();
        let mut last = meter::pss_of_tree(self.holder)?;
        loop {
            tokio::time::sleep(LOOK).await;
            let now = meter::pss_of_tree(self.holder)?;
            if now.abs_diff(last) <= now / 1000 || start.elapsed() > LONGEST {
                return Ok(now);
            }
            last = now;
        }
    }
}

const FIRST: usize = 32;
const AT_ONCE: usize = 16;
const LOOK: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(3);
