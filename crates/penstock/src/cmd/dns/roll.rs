//! `penstock dns roll`: puts a new key in use, through the gate.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use dns::{Authorities, Plan, Roll, SignedServer, Unlimited, Waiting};
use hosts::identity::Name;
use text::units;

use self::certificate::Certificate;
use self::host_key::{Algorithm, HostKey};
use super::push::tsig_key;
use super::services::StartTls;
use super::wanted::{HTTPS, NextArguments, at};
use crate::duration;
use crate::output::{Failure, complain, plain, print};
use crate::threads;

mod certificate;
mod host_key;

/// Put a new certificate or host key in use only when its record is everywhere
///
/// Pushes the record of the new key beside the old one, and looks at every server of the zone until each has shown it for twice
/// the TTL, so that no cache is without it. Then the file is moved into place (--into), from where a running penstock takes a
/// certificate up at once, and a command is run (--run), which makes other servers do so. The old record is removed after every
/// address of the service shows the new key alone.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// The new certificate with its chain and its key, in one PEM file; with --host the new host key, private or public
    #[arg(long, value_name = "FILE")]
    next: PathBuf,
    /// Where it is served from, such as /etc/penstock/certificates/www.pem
    #[arg(long, value_name = "FILE", required_unless_present = "run")]
    into: Option<PathBuf>,
    /// Command for /bin/sh that makes the service use the new key
    #[arg(long, value_name = "COMMAND")]
    run: Option<String>,
    /// The new key is a host key of this host: its record is SSHFP
    #[arg(long, value_name = "HOST", conflicts_with_all = ["tlsa", "ports", "names", "starttls"])]
    host: Option<Name>,
    /// With --host: type of the key that leaves [default: the only other one that has records]
    #[arg(long, value_enum, value_name = "TYPE", requires = "host")]
    replaces: Vec<Algorithm>,
    #[command(flatten)]
    names: NextArguments,
    /// Address of the primary server of the zone
    #[arg(long, value_name = "ADDRESS", value_parser = super::server)]
    server: SocketAddr,
    /// File with the key that signs updates, as tsig-keygen writes it
    #[arg(long, value_name = "FILE")]
    tsig: PathBuf,
    /// Servers of the zone to look at, instead of those of its NS records
    #[arg(long = "secondary", value_name = "ADDRESS", value_parser = super::server)]
    secondaries: Vec<SocketAddr>,
    /// Resolver to ask for the servers of the zone, instead of those of the system
    #[arg(long, value_name = "ADDRESS", value_parser = super::server)]
    dns_server: Option<SocketAddr>,
    /// Addresses of the service, instead of those of its name
    #[arg(long = "service", value_name = "ADDRESS:PORT")]
    services: Vec<SocketAddr>,
    /// How TLS begins at the service [default: as is usual at the port]
    #[arg(long, value_enum, value_name = "PROTOCOL")]
    starttls: Option<StartTls>,
    /// Time limit of each wait, beyond twice the TTL; in seconds, or with a unit
    #[arg(long, value_name = "SECONDS", default_value = "15m", value_parser = duration::seconds)]
    timeout: Duration,
}

const EXAMPLES: &str = "\
Examples:
  penstock dns roll --next new.pem --into /etc/penstock/certificates/www.pem --server 192.0.2.53 --tsig /etc/penstock/dns.key
  penstock dns roll --next mx.pem --port 25 --into /etc/ssl/private/mx.pem --run 'postfix reload' --server 192.0.2.53 --tsig dns.key
  penstock dns roll --host web1.example.org --next new_ecdsa_key --into /etc/ssh/ssh_host_ecdsa_key --run 'systemctl reload ssh' \\
    --server 192.0.2.53 --tsig dns.key

Exit codes: 0 the new key is in use, and the record of the old one is gone; 1 not so: the message says what is in use; 2 wrong usage.";

/// The new key.
enum Next {
    Certificate(Certificate),
    HostKey(HostKey),
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let next = match &arguments.host {
        None => {
            has_port(arguments)?;
            Next::Certificate(Certificate::read(&arguments.next, &arguments.names)?)
        }
        Some(host) => Next::HostKey(HostKey::read(&arguments.next, arguments.into.as_deref(), host)?),
    };
    let server = SignedServer::new(arguments.server, tsig_key(&arguments.tsig)?);
    let server = server.map_err(|why| at(&arguments.tsig, why))?;
    threads::single()?.block_on(roll(arguments, server, &next))?;
    print(&format!("done: the new {} is in use, and the record of the old one is gone\n", next.word()))
}

/// Whether the records are of the port that is meant: without `--port` they are of 443, and the key of a service at another port
/// would change beside its record.
fn has_port(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.names.has_port() {
        return Ok(());
    }
    let other = arguments.services.iter().find(|service| service.port() != HTTPS);
    let (option, port) = match (other, arguments.starttls) {
        (Some(service), _) => (format!("--service {service}"), service.port()),
        (None, Some(start)) if start != StartTls::None => ("--starttls".to_owned(), start.port()),
        (None, _) => return Ok(()),
    };
    Err(Failure::usage(format!(
        "{option}: without --port the TLSA records are of port {HTTPS}\n  hint: --port {port}, or --port {HTTPS} if that is the port that clients connect to"
    )))
}

impl Next {
    const fn word(&self) -> &'static str {
        match self {
            Self::Certificate(_) => "certificate",
            Self::HostKey(_) => "host key",
        }
    }
}

async fn roll(arguments: &Arguments, server: SignedServer, next: &Next) -> Result<(), Failure> {
    let word = next.word();
    let mut authorities =
        Authorities::new(&arguments.secondaries, arguments.dns_server).map_err(Failure::runtime)?;
    let stays = |why: &dyn std::fmt::Display| {
        Failure::runtime(format!("{}: the old {word} stays in use", plain(&why.to_string())))
    };
    let (wanted, leaving) = match next {
        Next::Certificate(certificate) => (certificate.wanted(), access::keys::Others::Remove),
        Next::HostKey(key) => {
            let leaving = key.leaving(&mut authorities, &arguments.replaces).await?;
            (key.wanted(), leaving)
        }
    };
    let plan = Plan {
        server,
        wanted: wanted.clone(),
        leaving: leaving.clone(),
        limit: arguments.timeout,
        turns: Arc::new(Unlimited),
    };
    let mut roll = Roll::begin(plan, &mut authorities).await.map_err(|fault| stays(&fault))?;
    complain("the new record is pushed\n");
    let visible = roll.visible(|waiting| {
        complain(&match waiting {
            Waiting::For(servers) => format!("waiting for the record: {}\n", plain(&servers.join(", "))),
            Waiting::Until(rest) => {
                format!("the record is everywhere; {} until no cache is without it\n", units::duration(*rest))
            }
        });
    });
    visible.await.map_err(|fault| both_left(word, &fault))?;
    put_in_use(arguments, next)?;
    let left = match next {
        Next::Certificate(certificate) => {
            certificate.left(&arguments.services, arguments.starttls, &mut roll, &authorities).await
        }
        Next::HostKey(key) => key.left(&arguments.services, &mut roll, &authorities, &leaving).await,
    };
    left.map_err(|fault| {
        Failure::runtime(format!(
            "{}: the new {word} may be used, and both records are left; begin anew to go on, or remove the old record by `penstock dns push`",
            plain(&fault.to_string())
        ))
    })?;
    match next {
        Next::Certificate(_) => Ok(()),
        Next::HostKey(key) => key.retire_old(&leaving),
    }
}

/// Puts the new key into its place, and has the service take it.
fn put_in_use(arguments: &Arguments, next: &Next) -> Result<(), Failure> {
    let word = next.word();
    if let Next::HostKey(key) = next {
        key.pin().map_err(|why| both_left(word, &why))?;
    }
    if let Some(into) = &arguments.into {
        match next {
            Next::Certificate(certificate) => certificate.install(into),
            Next::HostKey(key) => key.install(into),
        }
        .map_err(|why| both_left(word, &format!("{}: {why}", into.display())))?;
        complain(&format!("the new {word} is installed: {}\n", plain(&into.display().to_string())));
    }
    let Some(command) = &arguments.run else { return Ok(()) };
    run_command(command, &arguments.next).map_err(|why| {
        Failure::runtime(format!(
            "the command of --run: {why}: whether the new {word} is in use is not known, and both records are left; begin anew to go on"
        ))
    })
}

/// The failure of a roll after the new record was pushed and before the new key is used.
fn both_left(word: &str, why: &dyn std::fmt::Display) -> Failure {
    let why = plain(&why.to_string());
    Failure::runtime(format!("{why}: the old {word} stays in use, and both records are left"))
}

/// Runs a command of the operator to its end. It gets the file with the new key as `PENSTOCK_NEXT`.
fn run_command(command: &str, next: &Path) -> Result<(), String> {
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(command).env("PENSTOCK_NEXT", next).stdin(Stdio::null());
    match shell.status() {
        Err(error) => Err(format!("/bin/sh cannot be started: {error}")),
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("it ended with {status}")),
    }
}
