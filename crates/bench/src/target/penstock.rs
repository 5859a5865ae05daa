//! This program as a target, in a separate process like every other.

use std::path::Path;

use super::front::{BackendEnd, Engine, Front, Headers, Protocol, Replies, Tls};
use super::prepared::{Prepared, unsupported};
use crate::address::Address;
use crate::context::Context;
use crate::error::Error;
use crate::process::Launch;

pub fn prepare(context: &Context, program: &Path, front: &Front) -> Result<Prepared, Error> {
    let configuration = configuration(front)?;
    let path = context.write("penstock.toml", &configuration)?;
    let launch =
        Launch::new("penstock", program, &context.cores.target).arg("serve").arg("--config").arg(path);
    Ok(Prepared { launch, configuration })
}

fn configuration(front: &Front) -> Result<String, Error> {
    let protocol = match front.protocol {
        Protocol::Http => "http",
        Protocol::Tcp => "tcp",
        Protocol::Udp(_) => "udp",
    };
    // penstock offers both TLS versions and always allows resumption: the client decides.
    let tls = front.tls.as_ref().map(|tls| tls_line(front, tls)).unwrap_or_default();
    let settings = match (front.protocol, front.headers) {
        (Protocol::Http, Headers::Untouched) => "forwarded-headers = \"off\"\nrequest-id-header = \"off\"\n",
        (Protocol::Udp(Replies::One), _) => "replies = 1\n",
        (Protocol::Tcp, _) if front.backend_end == BackendEnd::EndsSession => "fast-close = \"up\"\n",
        _ => "",
    };
    let limit = match front.protocol {
        Protocol::Http | Protocol::Tcp => "max-connections",
        Protocol::Udp(_) => "max-flows",
    };
    let engine = match front.engine {
        Engine::Default => "",
        Engine::Epoll => "engine = \"epoll\"\n",
    };
    let connections = front.connections;
    Ok(format!(
        "\
[process]
workers = 1
{engine}drain-timeout = \"100ms\"
# All load comes from one address, and no other contestant limits what one may hold.
shares = {{ source = 100 }}

[access-log]
target = \"off\"

[listener.bench]
bind = \"{}\"
protocol = \"{protocol}\"
pool = \"bench\"
{limit} = {connections}
{settings}{tls}
[pool.bench]
backends = [\"{}\"]
keep-alive = 1024
",
        address(&front.listen)?,
        address(&front.backend)?,
    ))
}

fn tls_line(front: &Front, tls: &Tls) -> String {
    let hsts = if front.protocol == Protocol::Http { "hsts = \"off\"\n" } else { "" };
    // The load offers AES-128, which all contestants accept.
    let directory = tls.directory.display();
    format!("tls = {{ certificates = \"{directory}\", policy = \"compatible\" }}\n{hsts}")
}

fn address(address: &Address) -> Result<String, Error> {
    match address {
        Address::Tcp(_) | Address::Unix(_) => Ok(address.to_string()),
        Address::Udp(address) => Ok(address.to_string()),
        other => Err(unsupported("penstock", &other.to_string())),
    }
}
