//! HAProxy: one thread, in the foreground, no logs, persistent and shared connections to the backend.

use std::path::Path;

use super::front::{Front, Headers, Protocol, Splicing, TlsVersion};
use super::prepared::{Prepared, unsupported};
use crate::address::Address;
use crate::context::Context;
use crate::error::Error;
use crate::process::Launch;

pub fn prepare(context: &Context, program: &Path, front: &Front) -> Result<Prepared, Error> {
    let configuration = configuration(front)?;
    let path = context.write("haproxy.cfg", &configuration)?;
    let launch = Launch::new("haproxy", program, &context.cores.target).arg("-db").arg("-f").arg(path);
    Ok(Prepared { launch, configuration })
}

fn configuration(front: &Front) -> Result<String, Error> {
    // `option splice-auto` would decide itself, and does not splice streams like ours.
    let splicing = front.protocol == Protocol::Tcp && front.splicing == Splicing::On;
    let pipes = if splicing { "    tune.pipesize 1048576\n" } else { "" };
    let (mode, options, server) = match front.protocol {
        Protocol::Http => {
            ("http", "    http-reuse always\n    option http-ignore-probes\n", " pool-max-conn 1024")
        }
        Protocol::Tcp if splicing => ("tcp", "    option splice-request\n    option splice-response\n", ""),
        Protocol::Tcp => ("tcp", "", ""),
        Protocol::Udp(_) => return Err(unsupported("haproxy", "UDP")),
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
frontend clients
    bind {}{tls}
{headers}    default_backend bench

backend bench
    server backend {}{server}
",
        address(&front.listen)?,
        address(&front.backend)?,
    ))
}

/// Headers of a load balancer. The UUID is random, like the request ids of the other programs.
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
