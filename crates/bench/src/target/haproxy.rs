//! HAProxy: one thread, in the foreground, no logs, connections to the backend shared and kept.

use std::path::Path;

use super::{Front, Headers, Prepared, Protocol, Splicing, TlsVersion, unsupported};
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
    // `option splice-auto` finds out by itself whether to splice, and does not do it for a stream like ours.
    let splicing = front.protocol == Protocol::Tcp && front.splicing == Splicing::On;
    let pipes = if splicing { "    tune.pipesize 1048576\n" } else { "" };
    let (mode, options, server) = match front.protocol {
        Protocol::Http => {
            ("http", "    http-reuse always\n    option http-ignore-probes\n", " pool-max-conn 1024")
        }
        Protocol::Tcp if splicing => ("tcp", "    option splice-request\n    option splice-response\n", ""),
        Protocol::Tcp => ("tcp", "", ""),
    };
    let tls = match &front.tls {
        None => String::new(),
        Some(tls) => {
            let version = match tls.version {
                TlsVersion::V12 => "TLSv1.2",
                TlsVersion::V13 => "TLSv1.3",
            };
            let pem = tls.combined.display();
            format!(" ssl crt {pem} ssl-min-ver {version} ssl-max-ver {version}")
        }
    };
    let headers = match (front.protocol, front.headers) {
        (Protocol::Http, Headers::Added) => HEADERS,
        _ => "",
    };
    let connections = front.connections;
    Ok(format!(
        "\
global
    nbthread 1
    maxconn {connections}
{pipes}
defaults
    mode {mode}
    timeout connect 10s
    timeout client 1h
    timeout server 1h
{options}
frontend bench
    bind {}{tls}
{headers}    default_backend bench

backend bench
    server backend {}{server}
",
        address(&front.listen)?,
        address(&front.backend)?,
    ))
}

/// What a front door adds. A UUID is random, as the numbers of the others are.
const HEADERS: &str = "    option forwardfor
    http-request set-header X-Forwarded-Proto %[ssl_fc,iif(https,http)]
    http-request set-header X-Forwarded-Host %[req.hdr(Host)]
    unique-id-format %[uuid()]
    unique-id-header X-Request-ID
    http-response set-header X-Request-ID %[unique-id]
";

fn address(address: &Address) -> Result<String, Error> {
    match address {
        Address::Tcp(address) => Ok(address.to_string()),
        Address::Unix(path) => Ok(format!("unix@{}", path.display())),
        other => Err(unsupported("haproxy", &other.to_string())),
    }
}
