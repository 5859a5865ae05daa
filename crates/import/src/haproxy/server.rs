//! `server NAME ADDRESS [PARAMETER ...]`.

use super::words::milliseconds;
use crate::fits;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    On,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Usual,
    /// Only while no usual one works.
    Backup,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verify {
    /// Against `ca`, or the authorities of the machine.
    Required,
    None,
}

#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) address: String,
    pub(super) weight: u64,
    pub(super) max_connections: Option<u64>,
    pub(super) check: Check,
    pub(super) role: Role,
    /// In milliseconds.
    pub(super) interval: Option<u64>,
    pub(super) rise: Option<u64>,
    pub(super) fall: Option<u64>,
    pub(super) tls: Option<Verify>,
    pub(super) ca: Option<String>,
    pub(super) send_proxy: Option<&'static str>,
}

/// The server, and the parameters that have no translation.
pub(super) fn server(address: &str, parameters: &[String]) -> Result<(Server, Vec<String>), String> {
    let mut server = Server {
        address: backend_address(address)?,
        weight: 1,
        max_connections: None,
        check: Check::Off,
        role: Role::Usual,
        interval: None,
        rise: None,
        fall: None,
        tls: None,
        ca: None,
        send_proxy: None,
    };
    let mut left_out = Vec::new();
    let mut words = parameters.iter();
    while let Some(word) = words.next() {
        let mut argument = || words.next().map(String::as_str).ok_or_else(|| format!("{word} needs a value"));
        match word.as_str() {
            "check" => server.check = Check::On,
            "no-check" => server.check = Check::Off,
            "backup" => server.role = Role::Backup,
            "weight" => server.weight = number(word, argument()?)?,
            "maxconn" => server.max_connections = Some(number(word, argument()?)?).filter(|most| *most > 0),
            "inter" => {
                let text = argument()?;
                let time = milliseconds(text).ok_or_else(|| format!("{text:?} is not a time"))?;
                server.interval = Some(time);
            }
            "rise" => server.rise = Some(number(word, argument()?)?),
            "fall" => server.fall = Some(number(word, argument()?)?),
            "ssl" => server.tls = server.tls.or(Some(Verify::Required)),
            "verify" => {
                let verify = if argument()? == "none" { Verify::None } else { Verify::Required };
                // HAProxy uses it with `ssl` only, which may follow.
                server.tls = server
                    .tls
                    .map(|_| verify)
                    .or_else(|| parameters.iter().any(|word| word == "ssl").then_some(verify));
            }
            "ca-file" => server.ca = Some(argument()?.to_owned()),
            "send-proxy" => server.send_proxy = Some("v1"),
            "send-proxy-v2" => server.send_proxy = Some("v2"),
            // Names are looked up repeatedly, and a name without an address stops nothing.
            "init-addr" | "resolvers" | "resolve-prefer" => {
                argument()?;
            }
            other => {
                left_out.push(other.to_owned());
                if TAKES_VALUE.contains(&other) {
                    left_out.extend(words.next().cloned());
                }
            }
        }
    }
    Ok((server, left_out))
}

/// Parameters without a translation that have a value behind them.
const TAKES_VALUE: [&str; 24] = [
    "addr",
    "agent-addr",
    "agent-inter",
    "agent-port",
    "alpn",
    "check-alpn",
    "check-sni",
    "cookie",
    "crt",
    "downinter",
    "error-limit",
    "fastinter",
    "id",
    "maxqueue",
    "minconn",
    "observe",
    "on-error",
    "on-marked-down",
    "on-marked-up",
    "port",
    "proto",
    "slowstart",
    "sni",
    "source",
];

fn number(word: &str, text: &str) -> Result<u64, String> {
    let number = text.parse::<u64>().ok().filter(|number| *number <= 100_000_000);
    number.ok_or_else(|| format!("{word} {text:?} is not a number"))
}

/// An address as our configuration writes it.
fn backend_address(text: &str) -> Result<String, String> {
    let text = ["ipv4@", "ipv6@"].iter().find_map(|family| text.strip_prefix(family)).unwrap_or(text);
    if let Some(path) = text.strip_prefix("unix@").or(text.starts_with('/').then_some(text)) {
        return fits::socket(path).map(|()| format!("unix:{path}"));
    }
    if text.contains('@') {
        return Err(format!("{text:?} is an address of a family that is not known here"));
    }
    let (host, port) = text.rsplit_once(':').unwrap_or((text, ""));
    let valid = port.parse::<u16>().is_ok_and(|port| port > 0);
    if host.is_empty() || !valid {
        return Err(format!("{text:?} needs a host and a port: without one HAProxy uses that of the client"));
    }
    fits::host(host)?;
    let is_bare_ipv6 = host.contains(':') && !host.starts_with('[');
    Ok(if is_bare_ipv6 { format!("[{host}]:{port}") } else { text.to_owned() })
}
