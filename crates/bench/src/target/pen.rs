//! pen: a TCP relay that is configured on its command line.

use std::path::Path;

use super::front::Front;
use super::prepared::{Prepared, tcp_only};
use crate::context::Context;
use crate::error::Error;
use crate::process::Launch;

/// Builds the command line.
pub fn prepare(context: &Context, program: &Path, front: &Front) -> Result<Prepared, Error> {
    let listen = tcp_only("pen", "a Unix socket for clients", &front.listen)?;
    let backend = tcp_only("pen", "a Unix socket for backends", &front.backend)?;
    // In the foreground, without client tracking, with as many connections as the other programs.
    let connections = front.connections.to_string();
    let mut arguments: Vec<String> =
        ["-f", "-r", "-x", &connections, "-c", &connections].map(str::to_owned).into();
    if let Some(tls) = &front.tls {
        // pen has no option for the TLS version: the client selects it.
        let (certificate, key) = (tls.certificate.display(), tls.key.display());
        arguments.extend(["-E".to_owned(), certificate.to_string(), "-K".to_owned(), key.to_string()]);
    }
    arguments.extend([listen, backend]);
    let configuration = format!("pen {}\n", arguments.join(" "));
    let launch = Launch::new("pen", program, &context.cores.target).args(arguments);
    Ok(Prepared { launch, configuration })
}
