//! HAProxy: one thread, in the foreground, no logs, connections to the backend shared and kept.

use std::path::Path;

use super::{Front, Prepared, Protocol, Resumption, TlsVersion, unsupported};
use crate::address::Address;
use crate::context::Context;
use crate::error::Error;
use crate::process::Launch;

/// Writes its configuration.
pub fn prepare(context: &Context, program: &Path, front: &Front) -> Result<Prepared, Error> {
    let configuration = configuration(front)?;
    let path = context.write("haproxy.cfg", &configuration)?;
    let launch = Launch::new("haproxy", program, &context.cores.target).arg("-db").arg("-f").arg(path);
    Ok(Prepared { launch, configuration })
}

fn configuration(front: &Front) -> Result<String, Error> {
    // Splicing is what its authors recommend for bulk; `splice-auto` uses it only where it pays.
    let (mode, options, server) = match front.protocol {
        Protocol::Http => ("http", "    http-reuse always\n", " pool-max-conn 1024"),
        Protocol::Tcp => ("tcp", "    option splice-auto\n", ""),
    };
    let tls = match &front.tls {
        None => String::new(),
        Some(tls) => {
            let version = match tls.version {
                TlsVersion::V12 => "TLSv1.2",
                TlsVersion::V13 => "TLSv1.3",
            };
            let tickets = match tls.resumption {
                Resumption::Off => " no-tls-tickets",
                Resumption::Tickets => "",
            };
            let pem = tls.combined.display();
            format!(" ssl crt {pem} ssl-min-ver {version} ssl-max-ver {version}{tickets}")
        }
    };
    // Without a cache and without tickets nothing can be resumed.
    let cache = match &front.tls {
        Some(tls) if tls.resumption == Resumption::Off => "    tune.ssl.cachesize 0\n",
        _ => "",
    };
    let connections = front.connections;
    Ok(format!(
        "\
global
    nbthread 1
    maxconn {connections}
{cache}
defaults
    mode {mode}
    timeout connect 10s
    timeout client 1h
    timeout server 1h
{options}
frontend bench
    bind {}{tls}
    default_backend bench

backend bench
    server backend {}{server}
",
        address(&front.listen)?,
        address(&front.backend)?,
    ))
}

fn address(address: &Address) -> Result<String, Error> {
    match address {
        Address::Tcp(address) => Ok(address.to_string()),
        Address::Unix(path) => Ok(format!("unix@{}", path.display())),
        other => Err(unsupported("haproxy", &other.to_string())),
    }
}
