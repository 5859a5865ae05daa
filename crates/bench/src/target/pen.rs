//! pen: a TCP relay that is told everything on its command line.

use std::path::Path;

use super::{Front, Prepared, tcp_only, unsupported};
use crate::context::Context;
use crate::error::Error;
use crate::process::Launch;

/// Makes its command line.
pub fn prepare(context: &Context, program: &Path, front: &Front) -> Result<Prepared, Error> {
    if front.tls.is_some() {
        return Err(unsupported("pen", "TLS of a chosen version"));
    }
    let listen = tcp_only("pen", "a Unix socket for clients", &front.listen)?;
    let backend = tcp_only("pen", "a Unix socket for backends", &front.backend)?;
    // In the foreground, no tracking of clients, as many connections as the others have.
    let connections = front.connections.to_string();
    let arguments = ["-f", "-r", "-x", &connections, "-c", &connections, &listen, &backend];
    let configuration = format!("pen {}\n", arguments.join(" "));
    let launch = Launch::new("pen", program, &context.cores.target).args(arguments);
    Ok(Prepared { launch, configuration })
}
