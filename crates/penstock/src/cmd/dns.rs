//! `penstock dns`: keys in the DNS. Decisions: `access::keys`; questions and updates: `crates/dns`.

use std::net::{IpAddr, SocketAddr};

use clap::{Args, Subcommand};

use crate::output::Failure;

mod check;
mod push;
mod records;
mod roll;
mod services;
mod wanted;

/// Publish keys in the DNS, and check what it says
///
/// Records of host keys (SSHFP), of certificates (TLSA) and of OpenPGP keys (OPENPGPKEY, CERT): print them, push them to
/// the primary server of the zone with signed updates, and check them at every server of the zone, along the path that
/// DNSSEC proves, and at the service itself.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Records(records::Arguments),
    Push(push::Arguments),
    Check(check::Arguments),
    Roll(roll::Arguments),
}

const EXAMPLES: &str = "\
Examples:
  penstock dns records --hosts --zone example.org
  penstock dns records --config /etc/penstock/penstock.toml
  penstock dns push --config penstock.toml --server 192.0.2.53 --tsig dns.key --dry-run
  penstock dns check --config penstock.toml --anchor root.key";

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.command {
        Command::Records(arguments) => records::run(arguments),
        Command::Push(arguments) => push::run(arguments),
        Command::Check(arguments) => check::run(arguments),
        Command::Roll(arguments) => roll::run(arguments),
    }
}

/// Reads the address of a name server: `192.0.2.53`, `192.0.2.53:5353`, `2001:db8::53` or `[2001:db8::53]:5353`.
fn server(text: &str) -> Result<SocketAddr, String> {
    let with_port = text.parse::<SocketAddr>().ok().filter(|address| address.port() != 0);
    let without = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let alone = without.unwrap_or(text).parse::<IpAddr>();
    with_port.or(alone.ok().map(|ip| SocketAddr::new(ip, 53))).ok_or_else(|| {
        "it is not the address of a server: write 192.0.2.53 or 192.0.2.53:53 (a name would have to be looked up in the DNS)".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_is_an_address_with_or_without_a_port() {
        for (text, wanted) in [
            ("192.0.2.53", "192.0.2.53:53"),
            ("192.0.2.53:5353", "192.0.2.53:5353"),
            ("2001:db8::53", "[2001:db8::53]:53"),
            ("[2001:db8::53]", "[2001:db8::53]:53"),
            ("[2001:db8::53]:5353", "[2001:db8::53]:5353"),
        ] {
            assert_eq!(server(text).map(|address| address.to_string()), Ok(wanted.to_owned()), "{text}");
        }
        for text in ["", "ns1.example.org", "192.0.2.53:0", "192.0.2.53:x"] {
            assert!(server(text).is_err(), "{text}");
        }
    }
}
