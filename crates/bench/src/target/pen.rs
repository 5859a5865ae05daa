//! pen: a relay of TCP and UDP that is configured on its command line.

use std::path::Path;

use super::front::{Front, Protocol};
use super::prepared::{Prepared, tcp_only, unsupported};
use crate::address::Address;
use crate::context::Context;
use crate::error::Error;
use crate::process::Launch;

/// Builds the command line.
pub fn prepare(context: &Context, program: &Path, front: &Front) -> Result<Prepared, Error> {
    let (datagrams, listen, backend) = match front.protocol {
        // It has no number of replies: a flow stays until the table is full.
        Protocol::Udp(_) => (Some("-U"), datagrams(&front.listen)?, datagrams(&front.backend)?),
        Protocol::Tcp | Protocol::Http => (
            None,
            tcp_only("pen", "a Unix socket for clients", &front.listen)?,
            tcp_only("pen", "a Unix socket for backends", &front.backend)?,
        ),
    };
    // In the foreground, without client tracking, with as many connections as the other programs.
    let connections = front.connections.to_string();
    let mut arguments: Vec<String> =
        ["-f", "-r", "-x", &connections, "-c", &connections].map(str::to_owned).into();
    if let Some(tls) = &front.tls {
        // pen has no option for the TLS version: the client selects it.
        let (certificate, key) = (tls.certificate.display(), tls.key.display());
        arguments.extend(["-E".to_owned(), certificate.to_string(), "-K".to_owned(), key.to_string()]);
    }
    arguments.extend(datagrams.map(str::to_owned));
    arguments.extend([listen, backend]);
    let configuration = format!("pen {}\n", arguments.join(" "));
    let launch = Launch::new("pen", program, &context.cores.target).args(arguments);
    Ok(Prepared { launch, configuration })
}

fn datagrams(address: &Address) -> Result<String, Error> {
    match address {
        Address::Udp(address) => Ok(address.to_string()),
        other => Err(unsupported("pen", &format!("datagrams over {other}"))),
    }
}
