//! `penstock ctl dsr trace`: packets of services in a file, each with what was decided about it.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::super::capture::{self, NothingSeen};
use super::super::word::parse_word;
use crate::ctl::client::Client;
use crate::output::Failure;

#[derive(Debug, Args)]
pub(in super::super) struct Trace {
    /// The file, which must not exist yet; it gets mode 0600, because it has what clients send. - is standard output
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
    /// Stop after this number of packets
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    packets: u64,
    /// Stop before the file is larger: KiB, MiB, GiB
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = capture::size)]
    max_size: u64,
    /// Stop after this time; Ctrl-C stops at once
    #[arg(long = "for", value_name = "TIME", default_value = "60s", value_parser = capture::time)]
    time: Duration,
    /// Only packets of clients of this address or network, such as 203.0.113.0/24
    #[arg(long, visible_alias = "client", value_name = "NETWORK", value_parser = parse_word)]
    from: Option<String>,
    /// Only packets of this service: NAME of [listener.NAME], or one address as in `bind`
    #[arg(long, value_name = "SERVICE", value_parser = parse_word)]
    service: Option<String>,
    /// Only packets for this backend
    #[arg(long, value_name = "BACKEND", value_parser = parse_word)]
    backend: Option<String>,
    /// Only packets of which this was decided: forwarded, dropped, passed, answered, tarpitted, or the
    /// reason of a drop
    #[arg(long, value_name = "VERDICT", value_parser = parse_word)]
    verdict: Option<String>,
}

impl Trace {
    pub(super) fn words(&self) -> Vec<String> {
        let Self { packets, max_size, time, from, service, backend, verdict, .. } = self;
        let time = format!("{}ms", time.as_millis());
        let limits = ["trace", "for", &time, "size", &max_size.to_string(), "packets", &packets.to_string()]
            .map(str::to_owned);
        let filters = [("from", from), ("service", service), ("backend", backend), ("verdict", verdict)];
        let given = filters.into_iter().filter_map(|(word, value)| Some([word.to_owned(), value.clone()?]));
        limits.into_iter().chain(given.flatten()).collect()
    }

    pub(in super::super) fn run(
        &self,
        client: &mut Client,
        line: &str,
        as_json: bool,
    ) -> Result<(), Failure> {
        let nothing = NothingSeen("no packet that matches came meanwhile");
        capture::write_packets(client, line, &self.to, as_json, &nothing)
    }
}
