//! `penstock user token`: bearer tokens of programs, in the file of users. `crates/access/src/users/token.rs` has their form.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use access::policy::Role;
use access::users::{self, Secret, User, Users};
use clap::{Args, Subcommand};
use serde_json::json;

use super::file::{random, read as read_users, unknown, write};
use super::secret::first_line;
use crate::output::{Failure, complain, plain, print};

/// Bearer tokens: log-ins of programs, each with a role and an end
///
/// A token is shown once, when it is added; the file has its SHA-256 only. It logs in at the admin listener
/// (`Authorization: Bearer`) and at control over the network (`penstock ctl --host --token-file`, or any client of
/// OAUTHBEARER). A token that was revoked, or has ended, may do nothing from then on, over open connections too.
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Token {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a token and print it, alone on its line: nothing can show it again
    Add {
        /// Name of the token, for logs, lists and `revoke`
        name: String,
        /// What the token may do: view, operate or admin
        #[arg(long, value_name = "ROLE", value_parser = role)]
        role: Role,
        /// Time until its end, such as 12h or 30d, or never
        #[arg(long, value_name = "TIME", default_value = "90d", value_parser = lifetime)]
        expires: Lifetime,
        /// User whose program has the token: it ends when this user is revoked or removed
        #[arg(long, value_name = "NAME")]
        owner: Option<String>,
    },
    /// List tokens with their roles and ends
    List {
        /// Answer as JSON, for programs
        #[arg(long)]
        json: bool,
    },
    /// Remove a token: it may do nothing from now on, over open connections too
    Revoke {
        /// Name of the token
        name: String,
    },
}

#[derive(Clone, Copy, Debug)]
enum Lifetime {
    Never,
    For(Duration),
}

/// Longest time until the end of a token: ten years; one without an end is said to be so.
const LONGEST: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

/// Permission bits of other users than the owner.
const OF_OTHERS: u32 = 0o077;

/// Reads a role that an operator gives.
pub(super) fn role(word: &str) -> Result<Role, String> {
    word.parse().map_err(|_| "it is view, operate or admin".to_owned())
}

fn lifetime(text: &str) -> Result<Lifetime, String> {
    if text == "never" {
        return Ok(Lifetime::Never);
    }
    match config::duration(text)? {
        Duration::ZERO => Err("it is longer than 0".to_owned()),
        time if time > LONGEST => Err("it is ten years at most, or never".to_owned()),
        time => Ok(Lifetime::For(time)),
    }
}

impl Token {
    pub(super) fn run(&self, file: &Path) -> Result<(), Failure> {
        match &self.command {
            Command::Add { name, role, expires, owner } => {
                add(file, (name, owner.as_deref()), *role, *expires)
            }
            Command::List { json } => list(file, *json),
            Command::Revoke { name } => revoke(file, name),
        }
    }
}

fn add(
    file: &Path,
    (name, owner): (&str, Option<&str>),
    role: Role,
    lifetime: Lifetime,
) -> Result<(), Failure> {
    let (text, mut users) = read_users(file)?;
    let name = User::new(name).map_err(Failure::usage)?.name;
    let owner = owner.map(|owner| users.find(owner).ok_or_else(|| unknown(file, owner))).transpose()?;
    if let Some(User { name: owner, revoked: Some(date), .. }) = owner {
        return Err(Failure::usage(format_args!(
            "{owner} was revoked on {date}: a token of {owner} would be good for nothing"
        )));
    }
    let owner = owner.map(|owner| owner.name.clone());
    if users.token_named(&name).is_some() {
        return Err(Failure::usage(format_args!(
            "there is a token {name} already\n  hint: penstock user token revoke {name} removes it; two tokens have two names"
        )));
    }
    let expires = match lifetime {
        Lifetime::Never => None,
        Lifetime::For(time) => Some(unix_time() + time.as_secs()),
    };
    let secret = Secret::new(random()?);
    users.put_token(users::Token {
        name: name.clone(),
        owner: owner.clone(),
        role,
        expires,
        hash: secret.hash(),
    });
    if users.key().is_none() {
        users.set_key(random()?);
    }
    let new = users.to_string();
    if let Err(error) = Users::parse(&new) {
        return Err(Failure::usage(format_args!("token {name}: {}", error.fault)));
    }
    write(file, &new, text.as_deref())?;
    let owned = owner.map_or(String::new(), |owner| format!("of {owner}, "));
    complain(&format!("token {name}: {owned}role {role}, {}; it is not shown again\n", until(expires)));
    print(&format!("{}\n", *secret.text()))
}

fn list(file: &Path, json: bool) -> Result<(), Failure> {
    let (_, users) = read_users(file)?;
    let now = unix_time();
    if json {
        let all: Vec<_> = users
            .tokens()
            .map(|token| {
                json!({
                    "name": token.name,
                    "owner": token.owner,
                    "role": token.role.word(),
                    "expires": token.expires.map(shown),
                    "ended": token.has_ended(now),
                })
            })
            .collect();
        return print(&format!("{}\n", serde_json::Value::from(all)));
    }
    let line = |token: &users::Token| {
        let ended = if token.has_ended(now) { ", has ended" } else { "" };
        let owner = token.owner.as_deref();
        let of = owner.map_or(String::new(), |owner| {
            let is_good = users.find(owner).is_some_and(|user| user.revoked.is_none());
            format!(", of {owner}{}", if is_good { "" } else { ", who may do nothing any more" })
        });
        format!("{:<20} {:<8} {}{ended}{of}\n", token.name, token.role.word(), until(token.expires))
    };
    print(&users.tokens().map(line).collect::<String>())
}

fn revoke(file: &Path, name: &str) -> Result<(), Failure> {
    let (text, mut users) = read_users(file)?;
    if users.remove_token(name).is_none() {
        let file = plain(&file.display().to_string());
        return Err(Failure::usage(format_args!("{file} has no token {}", plain(name))));
    }
    write(file, &users.to_string(), text.as_deref())?;
    print(&format!("revoked {name}\n"))
}

/// Reads a token from the first line of a file that only its owner can read; `-` is standard input.
pub(crate) fn read(file: &Path) -> Result<Secret, Failure> {
    let shown = plain(&file.display().to_string());
    if file.as_os_str() != "-"
        && let Ok(of) = file.metadata()
        && of.is_file()
        && of.mode() & OF_OTHERS != 0
    {
        return Err(Failure::usage(format_args!(
            "the token in {shown} can be used by other users (mode {:04o})\n  hint: chmod 600 {shown}",
            of.mode() & 0o7777
        )));
    }
    let line = first_line(file, "token")?;
    line.trim().parse().map_err(|error| Failure::usage(format_args!("the first line of {shown} {error}")))
}

fn until(expires: Option<u64>) -> String {
    expires.map_or("without an end".to_owned(), |at| format!("until {}", shown(at)))
}

fn shown(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    time.map_or("an unknown time".to_owned(), |time| time.to_string())
}

fn unix_time() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}
