//! `penstock dns roll`: puts a new certificate in use, through the gate.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use access::keys::{Kind, Owner, Set, sets};
use clap::Args;
use dns::{Authorities, Roll, Services, SignedServer, Waiting};
use text::units;
use tls::Bundle;

use super::push::tsig_key;
use super::wanted::{NextArguments, at, read};
use crate::duration;
use crate::output::{Failure, complain, plain, print};
use crate::threads;

/// Put a new certificate in use only when its TLSA record is everywhere
///
/// Pushes the record of the new certificate beside the old one, and looks at every server of the zone until each has shown it
/// for twice the TTL, so that no cache is without it. Then the file is moved into the directory of certificates, from which a
/// running penstock takes it up at once. The old record is removed after every address of the service shows the new
/// certificate.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// The new certificate with its chain and its key, in one PEM file
    #[arg(long, value_name = "FILE")]
    next: PathBuf,
    /// Where it is served from, such as /etc/penstock/certificates/www.pem
    #[arg(long, value_name = "FILE")]
    into: PathBuf,
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
    /// Time limit of each wait, beyond twice the TTL; in seconds, or with a unit
    #[arg(long, value_name = "SECONDS", default_value = "15m", value_parser = duration::seconds)]
    timeout: Duration,
}

const EXAMPLES: &str = "\
Examples:
  penstock dns roll --next new.pem --into /etc/penstock/certificates/www.pem --server 192.0.2.53 --tsig /etc/penstock/dns.key

Exit codes: 0 the new certificate is in use, and only its record is left; 1 not so: the message says what is in use; 2 wrong usage.";

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let text = read(&arguments.next)?;
    Bundle::read(&text).map_err(|why| at(&arguments.next, why))?;
    let wanted = arguments.names.records(&arguments.next, &text)?;
    let wanted = sets(&wanted);
    let server = SignedServer::new(arguments.server, tsig_key(&arguments.tsig)?);
    let server = server.map_err(|why| at(&arguments.tsig, why))?;
    threads::single()?.block_on(roll(arguments, server, wanted, &text))?;
    print("done: the new certificate is in use, and only its record is left\n")
}

async fn roll(
    arguments: &Arguments,
    server: SignedServer,
    wanted: std::collections::BTreeMap<(Owner, Kind), Set>,
    text: &[u8],
) -> Result<(), Failure> {
    let mut authorities =
        Authorities::new(&arguments.secondaries, arguments.dns_server).map_err(Failure::runtime)?;
    let stays = |why: &dyn std::fmt::Display| {
        Failure::runtime(format!(
            "{}: the old certificate stays in use, and both records are left",
            plain(&why.to_string())
        ))
    };
    let begun = Roll::begin(server, wanted, &mut authorities, arguments.timeout).await;
    let mut roll = begun.map_err(|fault| {
        Failure::runtime(format!("{}: the old certificate stays in use", plain(&fault.to_string())))
    })?;
    complain("the new record is pushed\n");
    let visible = roll.visible(|waiting| {
        complain(&match waiting {
            Waiting::For(servers) => format!("waiting for the record: {}\n", plain(&servers.join(", "))),
            Waiting::Until(rest) => {
                format!("the record is everywhere; {} until no cache is without it\n", units::duration(*rest))
            }
        });
    });
    visible.await.map_err(|fault| stays(&fault))?;
    install(&arguments.into, text)
        .map_err(|error| stays(&format!("{}: {error}", arguments.into.display())))?;
    complain(&format!(
        "the new certificate is installed: {}\n",
        plain(&arguments.into.display().to_string())
    ));
    let services = match arguments.services.is_empty() {
        true => Services::OfNames(&authorities),
        false => Services::At(&arguments.services),
    };
    let left = roll.left(&services);
    left.await.map_err(|fault| {
        Failure::runtime(format!(
            "{}: the new certificate is installed, and both records are left: `penstock dns push` without the old one removes its record",
            plain(&fault.to_string())
        ))
    })
}

/// Moves the file into place: who reads it sees the old one or the new one.
fn install(into: &Path, text: &[u8]) -> std::io::Result<()> {
    let mut name = into.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    // A name that begins with a dot is no certificate for those who read the directory.
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    let part = into.with_file_name(hidden);
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&part, into)
}
