//! The clients that pools remember, and which backend each one has.

use std::time::{Duration, Instant};

use proxy::front::Front;
use proxy::snapshot::PoolPlan;
use serde::Serialize;
use state::SharedTable;
use state::lock::lock;
use text::table::Table;
use text::terminal::line;
use text::units;

/// Most clients that are listed of one pool, those seen last. Traffic waits for the table while it is read.
const MOST: usize = 1000;

#[derive(Clone, Debug, Serialize)]
pub struct ClientsReport {
    pub pool: String,
    /// Number of remembered clients.
    pub remembered: usize,
    /// Those seen last, the latest first.
    pub clients: Vec<ClientReport>,
}

#[derive(Clone, Debug, Serialize)]
pub struct ClientReport {
    /// An IPv4 address, or an IPv6 network of `sticky.ipv6-prefix`.
    pub client: String,
    /// `None` if the backend is not in the pool any more.
    pub backend: Option<String>,
    /// Time since its last session began.
    pub seen_seconds: u64,
    /// Time until it is forgotten, without another session.
    pub left_seconds: u64,
}

/// Reports the known clients of every sticky pool, or of the pool named `only`. With `within`, only clients that were seen in
/// that time.
pub fn read(front: &Front, only: Option<&str>, within: Option<Duration>) -> Vec<ClientsReport> {
    let now = Instant::now();
    let snapshot = front.snapshot.load();
    let pools = snapshot.pools.iter().filter(|pool| only.is_none_or(|only| *pool.settings.name == *only));
    pools.filter_map(|pool| Some(of_pool(pool, pool.sticky.as_ref()?, within, now))).collect()
}

fn of_pool(pool: &PoolPlan, table: &SharedTable, within: Option<Duration>, now: Instant) -> ClientsReport {
    let (remembered, seen) = {
        let table = lock(table);
        let recent = table.latest(now).take_while(|seen| within.is_none_or(|within| seen.ago <= within));
        (table.len(), recent.take(MOST).collect::<Vec<_>>())
    };
    let prefix = pool.settings.sticky.ipv6_prefix;
    let clients = seen.into_iter().map(|seen| ClientReport {
        client: seen.client.network(prefix),
        backend: pool.identities.find(seen.backend).map(|at| pool.backends[at].state.name.to_string()),
        seen_seconds: seen.ago.as_secs(),
        left_seconds: seen.left.as_secs(),
    });
    ClientsReport { pool: pool.settings.name.to_string(), remembered, clients: clients.collect() }
}

pub fn text(pools: &[ClientsReport]) -> String {
    let mut out = String::new();
    for pool in pools {
        let shown = match pool.clients.len() {
            all if all == pool.remembered => String::new(),
            shown => format!(", the {shown} seen last"),
        };
        if !out.is_empty() {
            out.push('\n');
        }
        let remembered = units::count(pool.remembered, "client");
        out.push_str(&format!("POOL {}: {remembered} remembered{shown}\n", line(&pool.pool)));
        let mut table = Table::indented("  ");
        table.header(["client", "backend", ">seen", ">left"]);
        for client in &pool.clients {
            let duration = |seconds| units::lasting(Duration::from_secs(seconds));
            table.row([
                client.client.clone(),
                client.backend.as_deref().map_or_else(|| "(gone)".to_owned(), line),
                duration(client.seen_seconds),
                duration(client.left_seconds),
            ]);
        }
        out.push_str(&table.render());
    }
    out
}
