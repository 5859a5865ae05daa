//! The commands that show and change the configuration of a running server.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;

use super::word::parse_word;
use crate::duration;

#[derive(Debug, Subcommand)]
pub(super) enum Change {
    /// The configuration that is served: the whole text, or one part with its defaults and where each value is from
    Show {
        /// A part of it: pool.app, pool.app.timeouts.connect, listener.web.route.2 (entries count from 1)
        #[arg(value_name = "PATH", value_parser = parse_word)]
        path: Option<String>,
    },
    /// Give a key a value, at once or in the transaction
    Set {
        /// The key, as pool.app.balance; an entry of a list by its number or its text:
        /// pool.app.backends.10.0.0.11:8000.weight
        #[arg(value_name = "PATH", value_parser = parse_word)]
        path: String,
        /// The value in TOML: 5, true, '["a", "b"]', '{ http = "/" }'; a word that is not TOML is a text
        #[arg(value_name = "VALUE", allow_hyphen_values = true, value_parser = parse_word)]
        value: String,
    },
    /// Append an entry to a list (backends, binds, routes, networks) or put it before another one, or make a pool or a
    /// listener
    Add {
        /// The list, as pool.app.backends; the entry before which the new one is put, as acl.abuse.entries.1; or a new
        /// table, as pool.NAME
        #[arg(value_name = "PATH", value_parser = parse_word)]
        path: String,
        /// The entry or table, as for `set`: 10.0.0.13:8000, '{ host = "x", pool = "app" }'
        #[arg(value_name = "VALUE", allow_hyphen_values = true, value_parser = parse_word)]
        value: String,
    },
    /// Remove a key, which then has its default, a table, or the entry of a list
    Remove {
        /// What to remove, as pool.app.timeouts.connect, pool.app or listener.web.route.2; with VALUE the list
        #[arg(value_name = "PATH", value_parser = parse_word)]
        path: String,
        /// The entry of the list, as 10.0.0.13:8000
        #[arg(value_name = "VALUE", allow_hyphen_values = true, value_parser = parse_word)]
        value: Option<String>,
    },
    /// Collect changes and serve them together at `commit`; other users cannot change anything until then
    Begin,
    /// The lines that `commit` would change; without a transaction, those that the file does not have
    Diff,
    /// Serve the changes since `begin`; if they cannot be served, nothing changes
    Commit {
        /// Undo them after this time (60, 60s, 5m) unless `penstock ctl confirm` comes first
        #[arg(long, value_name = "TIME", value_parser = confirmation)]
        confirm: Option<Duration>,
    },
    /// Keep what `commit --confirm` serves
    Confirm,
    /// Drop the changes since `begin`
    Abort {
        /// End the transaction of another user too
        #[arg(long)]
        force: bool,
    },
    /// Serve what was served before the last change; repeated, before the one before it
    Undo {
        /// Undo this change of `history`; refused if that would undo later ones too, which the answer names
        #[arg(value_name = "N")]
        number: Option<u64>,
        /// Undo the changes after N too
        #[arg(long, requires = "number")]
        and_later: bool,
    },
    /// Live changes: number, time, who, what
    History {
        /// The lines that this change changed
        #[arg(value_name = "N")]
        number: Option<u64>,
    },
    /// Write what is served into the configuration file; comments and order stay, as do lines that no change concerns
    ///
    /// The file is written by this command, with your rights, and replaced at once. It is not written if another
    /// process changed it since the server read it.
    Save {
        /// Another file, or the first one of a server that was started without a file
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
        /// Replace a file that exists, or that was changed since the server read it
        #[arg(long)]
        force: bool,
    },
}

impl Change {
    /// Returns the name and the arguments of the control protocol.
    pub(super) fn words(&self) -> (&'static str, Vec<String>) {
        match self {
            Self::Show { path } => ("show", path.iter().cloned().collect()),
            Self::Set { path, value } => ("set", vec![path.clone(), value.clone()]),
            Self::Add { path, value } => ("add", vec![path.clone(), value.clone()]),
            Self::Remove { path, value } => {
                ("remove", std::iter::once(path.clone()).chain(value.clone()).collect())
            }
            Self::Begin => ("begin", Vec::new()),
            Self::Diff => ("diff", Vec::new()),
            Self::Commit { confirm } => {
                let time = confirm.map(|time| ["confirm".to_owned(), format!("{}ms", time.as_millis())]);
                ("commit", time.into_iter().flatten().collect())
            }
            Self::Confirm => ("confirm", Vec::new()),
            Self::Abort { force } => ("abort", force.then(|| "force".to_owned()).into_iter().collect()),
            Self::Undo { number, and_later } => {
                let later = and_later.then(|| "and-later".to_owned());
                ("undo", number.iter().map(u64::to_string).chain(later).collect())
            }
            Self::History { number } => ("history", number.iter().map(u64::to_string).collect()),
            Self::Save { .. } => ("save", Vec::new()),
        }
    }
}

fn confirmation(text: &str) -> Result<Duration, String> {
    duration::between(text, Duration::from_secs(1), Duration::from_secs(24 * 3600))
}
