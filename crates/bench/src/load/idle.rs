//! Memory cost of idle connections.

use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use super::connector::{Client, Connector};
use super::gauge::Gauge;
use super::http;
use super::http::Stream;
use super::tcp::{self, TrafficShape};
use crate::address::Address;
use crate::meter;

/// Opens connections, uses each once, and keeps them idle. All work is done before the window, whose length may be
/// zero. The figures are in bytes: [`GROWTH`], [`BEFORE_REST`] and [`ALL`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Load {
    pub server: Address,
    pub connections: usize,
    pub talk: Talk,
    /// Idle time before the memory is read.
    pub rest: Duration,
    /// TLS settings; `None` for plain connections.
    pub tls: Option<Client>,
    /// Root of the process tree whose memory is read.
    pub holder: i32,
}

/// Use of a connection before it becomes idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Talk {
    /// A question and an answer of 100 bytes: see [`TrafficShape::Kept`].
    Bytes,
    Http,
}

/// Figure: growth of the holder's memory per connection, after the idle time.
pub const GROWTH: &str = "memory-growth";

/// Figure: growth of the holder's memory per connection, before the idle time.
pub const BEFORE_REST: &str = "memory-before-rest";

/// Figure: all memory of the holder per connection, including memory reserved earlier.
pub const ALL: &str = "memory-all";

/// Smallest number of connections. With fewer, large allocations of the process hide the cost of one connection.
pub const LEAST: usize = 500;

impl Load {
    pub async fn start(&self, gauge: &Rc<Gauge>) -> io::Result<()> {
        if self.connections < LEAST {
            return Err(io::Error::other(format!(
                "{} connections are too few to tell their memory from the rest: the limit of open descriptors must be \
                 higher (ulimit -n)",
                self.connections
            )));
        }
        let tls = self.tls.as_ref().map(Client::connector).transpose()?.map(Rc::new);
        // The first connections make a server allocate memory that all connections share.
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
            Talk::Bytes => tcp::exchange(&mut stream, TrafficShape::Kept).await?,
            Talk::Http => http::get_once(&mut stream).await?,
        }
        Ok(stream)
    }

    /// Waits until the holder's memory is stable and returns it.
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
