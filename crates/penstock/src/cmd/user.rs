//! `penstock user`: the file of those who may log in to a server's control over the network, and who owns which SSH key.
//! `crates/access/src/users.rs` has its form.

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use access::policy::Role;
use access::sasl::{Credential, LEAST_ITERATIONS, MOST_ITERATIONS, prepare};
use access::users::{Account, User, Users};
use clap::{Args, Subcommand};
use ssh::keys::{Answered, Ask, Question, UserPrompt};
use zeroize::Zeroizing;

use crate::output::{Failure, plain, print};

mod audit;
mod changed;
mod deploy;
mod file;
mod fleet;
mod input;
mod key;
mod list;
mod owners;
mod revoke;
pub(crate) mod secret;
pub(crate) mod token;
mod who;

use file::{FILE, random, read, unknown, write};
use secret::first_line;
use token::role;

/// Users: what they may do with a server's control, their passwords and groups, and their SSH keys on hosts
///
/// The file of users is the one that `users` of `[control]` in the server's configuration names; the server reads it at each log-in. It
/// has no password, only what checks one (SCRAM-SHA-256, the form of `gsasl --mkpasswd`), and for that its mode is 0600.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Arguments {
    /// File of users
    #[arg(long, value_name = "FILE", global = true, default_value = FILE)]
    file: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Add(Box<Add>),
    /// List users with their roles and groups
    List {
        /// Answer as JSON, for programs
        #[arg(long)]
        json: bool,
    },
    /// Remove a user: open connections of this user end too
    Remove {
        /// Name of the user
        name: String,
    },
    Key(key::Arguments),
    Who(who::Arguments),
    Audit(Box<audit::Arguments>),
    Deploy(Box<deploy::Arguments>),
    Revoke(Box<revoke::Arguments>),
    Token(token::Token),
}

/// Add a user, or change one: what is not named stays
///
/// Asks for the password on the terminal, unless it comes from a file.
#[derive(Debug, Args)]
struct Add {
    /// Name of the user
    name: String,
    /// What the user may do: view, operate or admin; `roles` of the configuration may give more
    #[arg(long, value_name = "ROLE", value_parser = role)]
    role: Option<Role>,
    /// A group of the user, for `roles` of the configuration; several are possible, and replace those from before
    #[arg(long = "group", value_name = "NAME")]
    groups: Vec<String>,
    /// Take the password from the first line of this file; `-` is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "no_password")]
    password_file: Option<PathBuf>,
    /// Ask for no password: a new user has none, another keeps it
    #[arg(long)]
    no_password: bool,
    /// Name of the user in Kerberos, NAME@REALM: such log-ins have the groups and the role of this user
    #[arg(long = "principal", value_name = "PRINCIPAL")]
    principals: Vec<String>,
    /// Common name of the user's client certificates: such log-ins have the groups and the role of this user
    #[arg(long = "certificate", value_name = "NAME")]
    certificates: Vec<String>,
    /// Accounts of hosts in which SSH keys of the user may stand: NAME or NAME@HOSTS, where `*` stands for any text; several are possible,
    /// and replace those from before. Without any, every account is right
    #[arg(long = "account", value_name = "ACCOUNT")]
    accounts: Vec<Account>,
    /// Work of a client for each log-in, and of a thief for each guess
    #[arg(long, value_name = "COUNT", default_value_t = ITERATIONS,
          value_parser = clap::value_parser!(u32).range(i64::from(LEAST_ITERATIONS)..=i64::from(MOST_ITERATIONS)))]
    iterations: u32,
}

/// Some tens of milliseconds of a client.
const ITERATIONS: u32 = 65_536;

/// Bytes of a salt.
const SALT: usize = 18;

const EXAMPLES: &str = "\
Examples:
  penstock user add ann --role operate
  penstock user add ann --group ops --group dba --no-password
  penstock user add root --role admin --certificate root.example --no-password
  penstock user list
  penstock user remove ann
  (umask 077; penstock user token add prometheus --role view --expires 30d > token)
  penstock user key add ann ann-laptop.pub
  penstock user who ~/.ssh/authorized_keys";

impl Arguments {
    /// Whether the command connects to hosts.
    pub(crate) fn connects(&self) -> bool {
        matches!(self.command, Command::Audit(_) | Command::Deploy(_) | Command::Revoke(_))
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let file = &arguments.file;
    match &arguments.command {
        Command::Add(add) => put(file, add),
        Command::List { json } => list::run(file, *json),
        Command::Remove { name } => remove(file, name),
        Command::Key(arguments) => key::run(file, arguments),
        Command::Who(arguments) => who::run(file, arguments),
        Command::Audit(arguments) => audit::run(file, arguments),
        Command::Deploy(arguments) => deploy::run(file, arguments),
        Command::Revoke(arguments) => revoke::run(file, arguments),
        Command::Token(token) => token.run(file),
    }
}

fn put(file: &Path, add: &Add) -> Result<(), Failure> {
    let (text, mut users) = read(file)?;
    // What looks the same is the same user.
    let name = prepare(&add.name).map(Cow::into_owned).unwrap_or_else(|_| add.name.clone());
    let before = users.find(&name).cloned();
    let is_new = before.is_none();
    let mut user = match before {
        Some(user) => user,
        None => User::new(&name).map_err(Failure::usage)?,
    };
    user.role = add.role.or(user.role);
    let replace = |old: &mut Vec<String>, new: &[String]| {
        if !new.is_empty() {
            *old = new.to_vec();
        }
    };
    replace(&mut user.groups, &add.groups);
    replace(&mut user.principals, &add.principals);
    replace(&mut user.certificates, &add.certificates);
    if !add.accounts.is_empty() {
        user.accounts.clone_from(&add.accounts);
    }
    if !add.no_password && (is_new || add.password_file.is_some()) {
        user.scram = Some(credential(add)?);
    }
    users.put(user);
    if users.key().is_none() {
        users.set_key(random()?);
    }
    // What the server would refuse is refused here.
    let new = users.to_string();
    if let Err(error) = Users::parse(&new) {
        return Err(Failure::usage(format_args!("user {}: {}", plain(&add.name), error.fault)));
    }
    write(file, &new, text.as_deref())?;
    let verb = if is_new { "added" } else { "changed" };
    print(&format!("{verb} {name}\n"))
}

fn credential(add: &Add) -> Result<Credential, Failure> {
    let password = match &add.password_file {
        Some(file) => password_of(file)?,
        None => ask_twice(&add.name)?,
    };
    let iterations = NonZeroU32::new(add.iterations).unwrap_or(NonZeroU32::MIN);
    Credential::derive(&password, &random::<SALT>()?, iterations)
        .map_err(|error| Failure::usage(format_args!("the password {error}")))
}

/// Reads a password from the first line of a file; `-` is standard input.
pub(crate) fn password_of(file: &Path) -> Result<String, Failure> {
    let line = first_line(file, "password")?;
    let checked = prepare(&line).map(Cow::into_owned);
    checked.map_err(|error| {
        Failure::usage(format_args!("the password in {} {error}", plain(&file.display().to_string())))
    })
}

/// Asks for a password on the terminal.
pub(crate) fn ask(question: &str) -> Result<String, Failure> {
    let answer = ask_unprepared(question, "password", "--password-file FILE")?;
    let checked = prepare(&answer).map(Cow::into_owned);
    checked.map_err(|error| Failure::usage(format_args!("the password {error}")))
}

/// Asks for what is sent as it was typed. `option` names it in a file.
pub(crate) fn ask_unprepared(question: &str, what: &str, option: &str) -> Result<Zeroizing<String>, Failure> {
    let question = Question { text: format!("{question}: "), answer: Answered::Unseen };
    UserPrompt::from_environment().ask(&question).map_err(|error| {
        Failure::usage(format_args!("cannot ask for the {what}: {error}\n  hint: {option} names it"))
    })
}

fn ask_twice(name: &str) -> Result<String, Failure> {
    let first = ask(&format!("New password of {}", plain(name)))?;
    match ask("The same again")? {
        second if second == first => Ok(first),
        _ => Err(Failure::usage("the two passwords differ: nothing has changed")),
    }
}

fn remove(file: &Path, name: &str) -> Result<(), Failure> {
    let (text, mut users) = read(file)?;
    if users.remove(name).is_none() {
        return Err(unknown(file, name));
    }
    write(file, &users.to_string(), text.as_deref())?;
    print(&format!("removed {name}\n"))
}
