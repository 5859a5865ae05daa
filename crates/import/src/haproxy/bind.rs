//! `bind ADDRESS[,ADDRESS ...] [PARAMETER ...]`.

use std::net::IpAddr;

use super::model::Bind;
use crate::fits;

/// The addresses, and the parameters that have no translation.
pub(super) fn binds(words: &[String]) -> Result<(Vec<Bind>, Vec<String>), String> {
    let Some((addresses, parameters)) = words.split_first() else {
        return Err("`bind` needs an address".to_owned());
    };
    let mut certificates: Option<Vec<String>> = None;
    let mut files = Vec::new();
    let mut left_out = Vec::new();
    let mut words = parameters.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "ssl" => certificates = Some(Vec::new()),
            "crt" => files.extend(words.next().cloned()),
            // These are always so: HTTP/2 by ALPN, IPv6 and IPv4 by the address, TLS 1.2 and newer.
            "alpn" | "npn" | "ssl-min-ver" => {
                words.next();
            }
            "v4v6" | "no-sslv3" | "no-tlsv10" | "no-tlsv11" | "prefer-client-ciphers" | "tfo" => {}
            other => {
                left_out.push(other.to_owned());
                if TAKES_VALUE.contains(&other) {
                    left_out.extend(words.next().cloned());
                }
            }
        }
    }
    let certificates = certificates.map(|_| files);
    let one = |text: &str| -> Result<Bind, String> {
        Ok(Bind { address: address(text)?, certificates: certificates.clone() })
    };
    let binds = addresses.split(',').map(one).collect::<Result<_, String>>()?;
    Ok((binds, left_out))
}

/// Parameters without a translation that have a value behind them.
const TAKES_VALUE: [&str; 17] = [
    "backlog",
    "ca-file",
    "ciphers",
    "ciphersuites",
    "crl-file",
    "crt-list",
    "curves",
    "ecdhe",
    "gid",
    "group",
    "id",
    "interface",
    "maxconn",
    "mode",
    "name",
    "nice",
    "verify",
];

fn address(text: &str) -> Result<String, String> {
    let text = ["ipv4@", "ipv6@"].iter().find_map(|family| text.strip_prefix(family)).unwrap_or(text);
    if let Some(path) = text.strip_prefix("unix@").or(text.starts_with('/').then_some(text)) {
        return fits::socket(path).map(|()| format!("unix:{path}"));
    }
    let (host, port) = text.rsplit_once(':').ok_or_else(|| format!("{text:?} has no port"))?;
    if !port.parse::<u16>().is_ok_and(|port| port > 0) || text.contains('@') {
        return Err(format!("{text:?}: write each port by its number"));
    }
    if matches!(host, "" | "*") {
        return Ok(format!(":{port}"));
    }
    let inside = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    match inside.parse::<IpAddr>() {
        Ok(ip) if ip.is_multicast() => Err(format!("{host} is a multicast address")),
        Ok(IpAddr::V6(ip)) => Ok(format!("[{ip}]:{port}")),
        Ok(IpAddr::V4(ip)) => Ok(format!("{ip}:{port}")),
        Err(_) => {
            Err(format!("{host:?} is a name, and a listener needs an address: write the one that it has"))
        }
    }
}
