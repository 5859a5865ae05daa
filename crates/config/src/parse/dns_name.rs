//! Backends of a pool, of which names may stand for several: `dns:HOST:PORT` and `srv:NAME`.

use super::address::{self, host_name};
use super::refused::Refused;
use crate::quote::quote;
use crate::types::{BackendAddress, DnsName};

/// Prefix of a host of which each address is a backend.
pub(super) const DNS: &str = "dns:";

/// Prefix of a name that has SRV records.
const SRV: &str = "srv:";

/// Parses an address of the backends of a pool.
pub(super) fn backend(text: &str) -> Result<BackendAddress, Refused> {
    if let Some(rest) = text.strip_prefix(DNS) {
        return addresses(rest).map(BackendAddress::Dns);
    }
    if let Some(rest) = text.strip_prefix(SRV) {
        return services(rest).map(BackendAddress::Dns);
    }
    address::backend(text)
}

fn addresses(text: &str) -> Result<DnsName, Refused> {
    const EXAMPLE: &str = "write \"dns:app.internal:8000\"";
    match address::backend(text) {
        Ok(BackendAddress::Name { host, port }) => Ok(DnsName::Addresses { host, port }),
        Ok(BackendAddress::Ip(address)) => {
            let reason = "has an address where dns: needs a name";
            Err(Refused::new(reason).instead(format!("write \"{address}\"")))
        }
        Ok(_) => Err(Refused::new("has no name in the DNS after dns:").in_general(EXAMPLE)),
        Err(refused) => {
            let instead = refused.instead.map(|instead| instead.replace("write \"", "write \"dns:"));
            Err(Refused { instead, ..refused })
        }
    }
}

fn services(text: &str) -> Result<DnsName, Refused> {
    const EXAMPLE: &str = "write \"srv:_http._tcp.app.internal\"";
    if let Some((name, port)) = text.rsplit_once(':')
        && port.bytes().all(|byte| byte.is_ascii_digit())
    {
        let reason = "has a port, and the ports of srv: are those of the records";
        return Err(Refused::new(reason).instead(format!("write {}", quote(&format!("{SRV}{name}")))));
    }
    let owner = text.strip_suffix('.').unwrap_or(text);
    host_name(owner).map_err(|refused| refused.in_general(EXAMPLE))?;
    if owner.rsplit('.').next().is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit())) {
        return Err(Refused::new("has an address where srv: needs a name").in_general(EXAMPLE));
    }
    Ok(DnsName::Services { owner: owner.to_ascii_lowercase() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_stands_for_several_backends_is_read() {
        let addresses = DnsName::Addresses { host: "app.internal".into(), port: 80 };
        assert_eq!(backend("dns:App.Internal.:80"), Ok(BackendAddress::Dns(addresses)));
        let services = DnsName::Services { owner: "_http._tcp.app.internal".into() };
        assert_eq!(services.host(), "app.internal");
        assert_eq!(backend("srv:_http._TCP.app.internal."), Ok(BackendAddress::Dns(services)));
        for text in ["dns:app.internal:80", "srv:_http._tcp.app.internal", "srv:web.service.consul"] {
            assert_eq!(backend(text).map(|address| address.to_string()), Ok(text.to_owned()));
        }
    }

    #[test]
    fn a_name_that_cannot_stand_for_backends_is_refused_with_what_to_write() {
        let hint = |text: &str| {
            let refused = backend(text).unwrap_err();
            refused.instead.or(refused.in_general.map(str::to_owned)).unwrap_or_default()
        };
        assert_eq!(hint("dns:10.0.0.1:80"), "write \"10.0.0.1:80\"");
        assert_eq!(hint("dns:app"), "write \"dns:app:80\"");
        assert_eq!(hint("dns:unix:/run/app"), "write \"dns:app.internal:8000\"");
        assert_eq!(hint("srv:_http._tcp.app:80"), "write \"srv:_http._tcp.app\"");
        assert_eq!(hint("srv:10.0.0.1"), "write \"srv:_http._tcp.app.internal\"");
        for text in ["dns:", "srv:", "dns:app:0", "srv:a..b", "srv:a b", "dns:ssh:nas/app:80", "srv:."] {
            assert!(backend(text).is_err(), "{text}");
        }
    }
}
