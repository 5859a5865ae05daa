//! `penstock ctl sessions` and `kill`: the words of the commands.

use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use logic::sessions::Sort;

use super::word::parse_word;
use crate::duration;

#[derive(Debug, Args)]
#[command(after_help = SESSIONS_EXAMPLES)]
pub(super) struct Sessions {
    #[command(flatten)]
    filter: Filter,
    /// Order: the oldest first, most bytes, most bytes a second, most open requests, the newest first [default: age]
    #[arg(long, value_name = "ORDER", value_parser = PossibleValuesParser::new(Sort::WORDS))]
    sort: Option<String>,
    /// Most sessions to show [default: 50]
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: Option<u32>,
}

#[derive(Debug, Args)]
#[command(after_help = KILL_EXAMPLES)]
#[command(override_usage = "penstock ctl kill [OPTIONS] ID...\n       penstock ctl kill [OPTIONS] --yes")]
pub(super) struct Kill {
    #[command(flatten)]
    filter: Filter,
    /// End all sessions that match the options; without it they are counted and none is ended
    #[arg(long)]
    yes: bool,
    /// A session: its id in `penstock ctl sessions`, the address and port of its client, or the id of its request
    /// (X-Request-Id)
    #[arg(value_name = "ID", value_parser = parse_word, required_unless_present_any = ["listener", "backend", "client", "longer_than"])]
    ids: Vec<String>,
}

#[derive(Debug, Args)]
struct Filter {
    /// Only sessions of this listener: NAME of [listener.NAME]
    #[arg(long, value_name = "NAME", value_parser = parse_word)]
    listener: Option<String>,
    /// Only sessions that have this backend, as the configuration writes it, or a whole part of it that only one has
    #[arg(long, value_name = "BACKEND", value_parser = parse_word)]
    backend: Option<String>,
    /// Only sessions of clients in this network: 192.0.2.7, 2001:db8::/32, or "unix"
    #[arg(long, value_name = "NETWORK", value_parser = parse_word)]
    client: Option<String>,
    /// Only sessions that are open for longer: seconds, or with a unit: ms, s, m
    #[arg(long, value_name = "TIME", value_parser = age)]
    longer_than: Option<Duration>,
}

const SESSIONS_EXAMPLES: &str = "\
Examples:
  penstock ctl sessions
  penstock ctl sessions --sort rate --limit 10
  penstock ctl sessions --backend 10.0.0.11:8000 --longer-than 600
  penstock ctl sessions --client 203.0.113.0/24 --json";

const KILL_EXAMPLES: &str = "\
Examples:
  penstock ctl kill 4711
  penstock ctl kill 203.0.113.7:50312
  penstock ctl kill --backend 10.0.0.11:8000          how many there are
  penstock ctl kill --backend 10.0.0.11:8000 --yes    end them";

fn age(text: &str) -> Result<Duration, String> {
    duration::between(text, Duration::from_millis(1), Duration::from_secs(10 * 365 * 86_400))
}

impl Filter {
    fn push(&self, words: &mut Vec<String>) {
        let texts =
            [("--listener", &self.listener), ("--backend", &self.backend), ("--client", &self.client)];
        for (name, value) in texts {
            words.extend(value.iter().flat_map(|value| [name.to_owned(), value.clone()]));
        }
        if let Some(age) = self.longer_than {
            words.extend(["--longer-than".to_owned(), format!("{}ms", age.as_millis())]);
        }
    }
}

impl Sessions {
    /// Words of the control command.
    pub(super) fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        self.filter.push(&mut words);
        words.extend(self.sort.iter().flat_map(|sort| ["--sort".to_owned(), sort.clone()]));
        words.extend(self.limit.iter().flat_map(|limit| ["--limit".to_owned(), limit.to_string()]));
        words
    }
}

impl Kill {
    /// Words of the control command.
    pub(super) fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        self.filter.push(&mut words);
        words.extend(self.yes.then(|| "--yes".to_owned()));
        words.extend(self.ids.iter().cloned());
        words
    }
}
