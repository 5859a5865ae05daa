//! nginx: one worker, in the foreground, no logs, persistent connections to the backend (which need HTTP/1.1 and an
//! empty Connection header).

use std::path::Path;

use super::front::{Front, Headers, Protocol, Replies, Tls, TlsVersion};
use super::prepared::{Prepared, unsupported};
use crate::address::Address;
use crate::context::Context;
use crate::error::Error;
use crate::process::Launch;

pub fn prepare(context: &Context, program: &Path, front: &Front) -> Result<Prepared, Error> {
    let prefix = context.path("nginx");
    let scratch = prefix.display().to_string();
    let configuration = configuration(front, &scratch, context.descriptors)?;
    let path = context.write("nginx.conf", &configuration)?;
    std::fs::create_dir_all(&prefix)
        .map_err(|source| Error::Io { doing: format!("create {scratch}"), source })?;
    let launch = Launch::new("nginx", program, &context.cores.target)
        .arg("-p")
        .arg(prefix)
        .arg("-e")
        .arg("stderr")
        .arg("-c")
        .arg(path);
    Ok(Prepared { launch, configuration })
}

fn configuration(front: &Front, scratch: &str, descriptors: u64) -> Result<String, Error> {
    let (listen, backend) = (address(&front.listen)?, address(&front.backend)?);
    let ssl = if front.tls.is_some() { " ssl" } else { "" };
    let tls = front.tls.as_ref().map(tls_lines).unwrap_or_default();
    let module = match front.protocol {
        Protocol::Tcp | Protocol::Udp(_) => find_stream_module()?.unwrap_or_default(),
        Protocol::Http => String::new(),
    };
    // Started by root, nginx would run its worker as a user without access to the sockets of this run.
    let user = if nix::unistd::geteuid().is_root() { "user root;\n" } else { "" };
    let head = format!(
        "\
{module}{user}worker_processes 1;
worker_rlimit_nofile {};
daemon off;
pid {scratch}/nginx.pid;
error_log stderr error;
events {{ worker_connections {}; }}
",
        descriptors.min(FILES),
        front.connections * 2
    );
    let headers = match front.headers {
        Headers::Added => HEADERS,
        Headers::Untouched => "",
    };
    let body = match front.protocol {
        Protocol::Http => format!(
            "\
http {{
    access_log off;
    client_body_temp_path {scratch}/body;
    proxy_temp_path {scratch}/proxy;
    fastcgi_temp_path {scratch}/fastcgi;
    scgi_temp_path {scratch}/scgi;
    uwsgi_temp_path {scratch}/uwsgi;
    keepalive_requests 1000000000;
    upstream bench {{
        server {backend};
        keepalive 1024;
        keepalive_requests 1000000000;
    }}
    server {{
        listen {listen}{ssl};
{tls}        location / {{
            proxy_pass http://bench;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
            proxy_set_header Host $http_host;
{headers}        }}
    }}
}}
"
        ),
        Protocol::Tcp => format!(
            "\
stream {{
    access_log off;
    server {{
        listen {listen}{ssl};
{tls}        proxy_pass {backend};
    }}
}}
"
        ),
        Protocol::Udp(replies) => format!(
            "\
stream {{
    access_log off;
    server {{
        listen {listen} udp;
{}        proxy_pass {backend};
    }}
}}
",
            match replies {
                Replies::One => "        proxy_responses 1;\n",
                Replies::Any => "",
            }
        ),
    };
    Ok(head + &body)
}

/// Descriptor limit of the worker, enough for every group.
const FILES: u64 = 20_000;

/// Headers of a load balancer. `$request_id` is random, like the request ids of the other programs.
const HEADERS: &str = "            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_set_header X-Forwarded-Proto $scheme;
            proxy_set_header X-Forwarded-Host $http_host;
            proxy_set_header X-Request-ID $request_id;
            add_header X-Request-ID $request_id;
";

fn tls_lines(tls: &Tls) -> String {
    let version = match tls.version {
        TlsVersion::V12 => "TLSv1.2",
        TlsVersion::V13 => "TLSv1.3",
    };
    format!(
        "        ssl_certificate {};
        ssl_certificate_key {};
        ssl_protocols {version};
",
        tls.certificate.display(),
        tls.key.display()
    )
}

/// Returns the line that loads the stream module. Debian builds the module as a separate file; elsewhere it is often
/// built in, and no line is needed.
pub fn find_stream_module() -> Result<Option<String>, Error> {
    let module = Path::new("/usr/lib/nginx/modules/ngx_stream_module.so");
    if module.exists() {
        return Ok(Some(format!("load_module {};\n", module.display())));
    }
    let debian = Path::new("/usr/share/nginx").exists() && Path::new("/etc/debian_version").exists();
    if debian {
        let (program, package) = ("nginx stream module".to_owned(), "libnginx-mod-stream".to_owned());
        return Err(Error::Missing { program, package });
    }
    Ok(None)
}

fn address(address: &Address) -> Result<String, Error> {
    match address {
        Address::Tcp(address) | Address::Udp(address) => Ok(address.to_string()),
        Address::Unix(path) => Ok(format!("unix:{}", path.display())),
        other => Err(unsupported("nginx", &other.to_string())),
    }
}
