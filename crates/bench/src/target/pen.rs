//! pen: a TCP relay that is told everything on its command line.

use std::path::Path;

use super::{Front, Prepared, tcp_only};
use crate::context::Context;
use crate::error::Error;
use crate::process::Launch;

/// Makes its command line.
pub fn prepare(context: &Context, program: &Path, front: &Front) -> Result<Prepared, Error> {
    let listen = tcp_only("pen", "a Unix socket for clients", &front.listen)?;
    let backend = tcp_only("pen", "a Unix socket for backends", &front.backend)?;
    // In the foreground, no tracking of clients, as many connections as the others have.
    let connections = front.connections.to_string();
    let mut arguments: Vec<String> =
        ["-f", "-r", "-x", &connections, "-c", &connections].map(str::to_owned).into();
    if let Some(tls) = &front.tls {
        // It cannot be told a version: the client decides.
        let (certificate, key) = (tls.certificate.display(), tls.key.display());
        arguments.extend(["-E".to_owned(), certificate.to_string(), "-K".to_owned(), key.to_string()]);
    }
    arguments.extend([listen, backend]);
    let configuration = format!("pen {}\n", arguments.join(" "));
    let launch = Launch::new("pen", program, &context.cores.target).args(arguments);
    Ok(Prepared { launch, configuration })
}
