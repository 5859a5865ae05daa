//! hitch: terminates TLS and forwards the bytes.

use std::path::Path;

use super::front::{Front, TlsVersion};
use super::prepared::{Prepared, tcp_only, unsupported};
use crate::address::Address;
use crate::context::Context;
use crate::error::Error;
use crate::process::Launch;

pub fn prepare(context: &Context, program: &Path, front: &Front) -> Result<Prepared, Error> {
    let Some(tls) = &front.tls else { return Err(unsupported("hitch", "anything but TLS")) };
    let listen = tcp_only("hitch", "a Unix socket for clients", &front.listen)?;
    let (host, port) = listen.rsplit_once(':').unwrap_or((&listen, "0"));
    let backend = match &front.backend {
        Address::Tcp(address) => format!("[{}]:{}", address.ip(), address.port()),
        Address::Unix(path) => path.display().to_string(),
        other => return Err(unsupported("hitch", &other.to_string())),
    };
    let version = match tls.version {
        TlsVersion::V12 => "TLSv1.2",
        TlsVersion::V13 => "TLSv1.3",
    };
    // hitch refuses to run its workers as root.
    let user = if nix::unistd::geteuid().is_root() { "user = \"nobody\"\n" } else { "" };
    let configuration = format!(
        "\
frontend = {{ host = \"{host}\" port = \"{port}\" }}
backend = \"{backend}\"
pem-file = \"{}\"
tls-protos = {version}
{user}workers = 1
daemon = off
",
        tls.combined.display()
    );
    let path = context.write("hitch.conf", &configuration)?;
    let launch =
        Launch::new("hitch", program, &context.cores.target).arg(format!("--config={}", path.display()));
    Ok(Prepared { launch, configuration })
}
