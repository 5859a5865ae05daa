//! `penstock user key`: the public keys of SSH that a user owns.

use std::path::{Path, PathBuf};

use access::users::{SshKey, User, Users};
use clap::{Args, Subcommand};
use hosts::authorized::line::Line;
use hosts::authorized::strength::{ADVISED_BITS, LEAST_BITS, Strength};
use hosts::ssh::key::{Fingerprint, PublicKey};
use serde_json::json;
use text::table::Table;

use super::file;
use super::input::Lines;
use super::owners::{Owners, keys};
use crate::output::{Failure, complain, plain, print, print_json};

/// Public keys of SSH and who owns them
///
/// `user who` tells the owner of a key, `user deploy` brings keys to hosts, and `user audit` finds what is on hosts and belongs to
/// no owner.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, subcommand_required = true, arg_required_else_help = true)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Add a public key of a user: the line of its FILE.pub, without options
    Add {
        /// Name of the user
        name: String,
        /// File with one public key; `-` is standard input
        #[arg(value_name = "FILE", default_value = "-")]
        from: PathBuf,
        /// Take the key although another user has it too: `user audit` goes on to report it
        #[arg(long)]
        shared: bool,
    },
    /// Remove a key of a user. It stays on hosts until `user deploy` or `user revoke`
    Remove {
        /// Name of the user
        name: String,
        /// The key: its fingerprint (SHA256:...), or a file that has it; `-` is standard input
        key: String,
    },
    /// List keys with their owners
    List {
        /// Name of the user; all without it
        name: Option<String>,
        /// Answer as JSON, for programs
        #[arg(long)]
        json: bool,
    },
}

const EXAMPLES: &str = "\
Examples:
  penstock user key add ann ann-laptop.pub
  ssh-add -L | head -1 | penstock user key add ann
  penstock user key list
  penstock user key remove ann SHA256:NvZW4PQ/NztixA1mlqdSdvSWDnj6i8ODTVyaMLSm10M";

pub(super) fn run(file: &Path, arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.command {
        Command::Add { name, from, shared } => {
            let sharing = if *shared { Sharing::Allowed } else { Sharing::Refused };
            add(file, name, from, sharing)
        }
        Command::Remove { name, key } => remove(file, name, key),
        Command::List { name, json } => list(file, name.as_deref(), *json),
    }
}

/// Whether a key may belong to two users.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sharing {
    Allowed,
    Refused,
}

fn add(file: &Path, name: &str, from: &Path, sharing: Sharing) -> Result<(), Failure> {
    let (text, mut users) = file::read(file)?;
    let mut user = find(&users, file, name)?;
    if let Some(date) = &user.revoked {
        return Err(Failure::usage(format_args!(
            "{name} was revoked on {date}: no key is added\n  hint: penstock user remove {name}, then penstock user add {name}"
        )));
    }
    let lines = Lines::read(from)?;
    let line = only_key(&lines)?;
    let (key, print_of) = (&line.key, line.key.fingerprint());
    let others = Owners::of(&users)?;
    let others: Vec<_> = others.find(&print_of).iter().filter(|other| *other != name).cloned().collect();
    if keys(&user)?.contains(key) {
        return print(&format!("{name} has {print_of} already\n"));
    }
    if !others.is_empty() && sharing == Sharing::Refused {
        return Err(Failure::usage(format_args!(
            "{print_of} is a key of {}: a log-in with it tells no more who it was\n  \
             hint: make another one with ssh-keygen, or --shared",
            others.join(" and ")
        )));
    }
    let added = SshKey::new(key.blob(), &line.comment)
        .map_err(|error| Failure::usage(format_args!("{}: the key {error}", lines.shown)))?;
    user.ssh_keys.push(added);
    users.put(user);
    file::write(file, &users.to_string(), text.as_deref())?;
    if let small @ Strength::Small(_) = Strength::of(key) {
        complain(&format!("warning: {print_of} is {small}\n"));
    }
    print(&format!("added {} {print_of} to {name}\n", key.algorithm()))
}

/// The one key of a file, fit for an owner.
fn only_key(lines: &Lines) -> Result<Line, Failure> {
    let shown = &lines.shown;
    let refuse = |why: String| Failure::usage(format_args!("{shown}{why}"));
    let mut all = lines.parse();
    if all.len() > 1 && all.iter().all(|(_, line)| line.is_ok()) {
        return Err(refuse(format!(
            " has {} keys\n  hint: add them one by one, so that each is looked at",
            all.len()
        )));
    }
    let Some((at, line)) = all.drain(..).next() else { return Err(refuse(" has no key".to_owned())) };
    let line = line.map_err(|fault| refuse(format!(":{at}: {}", plain(&fault.to_string()))))?;
    if !line.options.is_empty() {
        return Err(refuse(format!(
            ":{at}: the key has options ({}), which belong to authorized_keys of one host\n  hint: give the key alone",
            plain(&line.options)
        )));
    }
    let algorithm = line.key.algorithm();
    if algorithm.contains("-cert-v01@") {
        return Err(refuse(format!(":{at}: it is a certificate ({algorithm})\n  hint: give the public key")));
    }
    if let why @ (Strength::TooSmall(_) | Strength::Dsa) = Strength::of(&line.key) {
        return Err(refuse(format!(":{at}: it is {why}\n  hint: ssh-keygen -t ed25519 makes a strong one")));
    }
    ssh::keys::check_public(&line.key)
        .map_err(|why| refuse(format!(":{at}: the SSH library refuses the key: {}", plain(&why))))?;
    Ok(line)
}

fn remove(file: &Path, name: &str, which: &str) -> Result<(), Failure> {
    let (text, mut users) = file::read(file)?;
    let mut user = find(&users, file, name)?;
    let wanted: Fingerprint = match which.parse() {
        Ok(fingerprint) => fingerprint,
        Err(_) if which.starts_with("SHA256:") => {
            return Err(Failure::usage(format_args!(
                "{} is no whole fingerprint of 43 characters",
                plain(which)
            )));
        }
        Err(_) => {
            let lines = Lines::read(Path::new(which))?;
            match lines.parse().drain(..).next() {
                Some((_, Ok(line))) => line.key.fingerprint(),
                Some((at, Err(fault))) => {
                    let why = plain(&fault.to_string());
                    return Err(Failure::usage(format_args!("{}:{at}: {why}", lines.shown)));
                }
                None => return Err(Failure::usage(format_args!("{} has no key", lines.shown))),
            }
        }
    };
    let before = user.ssh_keys.len();
    user.ssh_keys
        .retain(|key| !PublicKey::from_blob(key.blob()).is_ok_and(|key| key.fingerprint() == wanted));
    if user.ssh_keys.len() == before {
        return Err(Failure::usage(format_args!(
            "{wanted} is no key of {name}\n  hint: penstock user key list {name}"
        )));
    }
    users.put(user);
    file::write(file, &users.to_string(), text.as_deref())?;
    print(&format!(
        "removed {wanted} from {name}\nIt stays on the hosts where it is, until: penstock user deploy {name} --to HOSTS\n"
    ))
}

fn list(file: &Path, name: Option<&str>, json: bool) -> Result<(), Failure> {
    let (_, users) = file::read(file)?;
    let one = name.map(|name| find(&users, file, name)).transpose()?;
    let chosen: Vec<&User> = one.as_ref().map_or_else(|| users.iter().collect(), |user| vec![user]);
    let mut table = Table::default();
    table.header(["OWNER", "KEY", "FINGERPRINT", "COMMENT", "NOTE"]);
    let (mut all, mut count) = (Vec::new(), 0);
    for user in chosen {
        for (key, kept) in keys(user)?.iter().zip(&user.ssh_keys) {
            count += 1;
            let strength = Strength::of(key);
            all.push(json!({
                "owner": user.name,
                "algorithm": key.algorithm(),
                "fingerprint": key.fingerprint().to_string(),
                "comment": kept.comment(),
                "bits": key.rsa_bits(),
                "revoked": user.revoked,
            }));
            let note = match (&user.revoked, strength) {
                (Some(date), _) => format!("revoked {date}"),
                (None, Strength::Good) => String::new(),
                (None, Strength::Small(bits)) => format!("{bits} bits, not {ADVISED_BITS}"),
                (None, Strength::TooSmall(bits)) => format!("{bits} bits, not {LEAST_BITS}"),
                (None, Strength::Dsa) => "DSA".to_owned(),
            };
            let key = [key.algorithm().to_owned(), key.fingerprint().to_string()];
            let [algorithm, fingerprint] = key;
            table.row([user.name.clone(), algorithm, fingerprint, kept.comment().to_owned(), note]);
        }
    }
    if json {
        return print_json(&format!("{}\n", serde_json::Value::from(all)));
    }
    match count {
        0 => print("no keys: penstock user key add NAME FILE.pub\n"),
        _ => print(&table.widest(50).render()),
    }
}

fn find(users: &Users, file: &Path, name: &str) -> Result<User, Failure> {
    users.find(name).cloned().ok_or_else(|| file::unknown(file, name))
}
